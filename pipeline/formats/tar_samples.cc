#include "pipeline/formats/tar_samples.h"

#include <algorithm>

#include "pipeline/formats/group_stream.h"
#include "pipeline/formats/shard_reader.h"
#include "pipeline/records.h"

namespace millrace {
namespace {

// The members of one shard as a stream that ends with the shard.
class one_shard final : public stream<tar_member> {
 public:
  one_shard(lane_context& lane, const shard_ref& which, const lane_cursor& at, shard_head had)
      : cursor_(lane.id(cursor_record::name)),
        draw_(which.draw),
        epoch_(which.epoch),
        reader_(lane, which, static_cast<std::uint64_t>(std::max(at.offset, which.begin)), at.given,
                had) {}
  awaitable<outcome> next() override { co_return co_await reader_.next(); }
  void save(state& to) const override { to.put(cursor_, cursor_record::of(epoch_, cursor())); }
  void restore(const state& /*from*/) override {}
  lane_cursor cursor() const {
    return {.draw = draw_, .offset = reader_.offset(), .given = reader_.given()};
  }
  std::int64_t epoch() const { return epoch_; }
  bool is_broken() const { return reader_.is_broken(); }

 private:
  std::string cursor_;
  std::int64_t draw_;
  std::int64_t epoch_;
  shard_reader reader_;
};

class tar_reader final : public sample_reader {
 public:
  tar_reader(lane_context& lane, shard_ref which, const lane_cursor& at, shard_head had) {
    const bool has_own = at.offset <= which.begin && which.before != seen_before();
    const seen_before before = has_own ? which.before : at.before;
    which.before = {};  // given to the samples here
    auto members = std::make_unique<one_shard>(lane, which, at, had);
    members_ = members.get();
    samples_ = std::make_unique<group_stream>(lane, std::move(members), before);
  }
  awaitable<result<std::optional<sample>>> next() override { co_return co_await samples_->next(); }
  std::int64_t offset() const override { return cursor_of(samples_->now()).offset; }
  std::int64_t given() const override { return cursor_of(samples_->now()).given; }
  seen_before before() const override { return cursor_of(samples_->now()).before; }
  std::optional<lane_cursor> in_front() const override { return cursor_of(samples_->in_front()); }
  bool is_broken() const override { return members_->is_broken() && !samples_->has_unread(); }

 private:
  lane_cursor cursor_of(const group_stream::place& at) const {
    lane_cursor out = at.held ? *at.held : members_->cursor();
    out.before = at.before;
    out.before.told = samples_->told_at(members_->epoch(), out);
    return out;
  }

  one_shard* members_;
  std::unique_ptr<group_stream> samples_;
};

class tar_source final : public sample_source {
 public:
  tar_source(const untar_options& options, std::shared_ptr<const shard_head> had)
      : options_(std::make_shared<const untar_options>(options)), had_(std::move(had)) {}

  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    lane.untar = options_;
    return std::make_unique<tar_reader>(lane, which, at, had_ ? *had_ : shard_head());
  }
  // It asks for no bytes behind the end, and passes over members without collecting them.
  bool keeps_bounds() const override { return true; }

 private:
  std::shared_ptr<const untar_options> options_;
  std::shared_ptr<const shard_head> had_;
};

}  // namespace

std::shared_ptr<const sample_source> tar_samples(const untar_options& options,
                                                 std::shared_ptr<const shard_head> had) {
  return std::make_shared<tar_source>(options, std::move(had));
}

}  // namespace millrace
