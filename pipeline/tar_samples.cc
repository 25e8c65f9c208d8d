#include "pipeline/tar_samples.h"

#include <algorithm>

#include "pipeline/group_stream.h"
#include "pipeline/shard_reader.h"

namespace millrace {
namespace {

// The members of one shard as a stream that ends with the shard.
class one_shard final : public stream<tar_member> {
 public:
  one_shard(lane_context& lane, const shard_ref& which, const lane_cursor& at, shard_head had)
      : reader_(lane, which, static_cast<std::uint64_t>(std::max(at.offset, which.begin)), at.given,
                had) {}
  awaitable<outcome> next() override { co_return co_await reader_.next(); }
  void save(state& /*to*/) const override {}
  void restore(const state& /*from*/) override {}
  const shard_reader& reader() const { return reader_; }

 private:
  shard_reader reader_;
};

class tar_reader final : public sample_reader {
 public:
  tar_reader(lane_context& lane, const shard_ref& which, const lane_cursor& at, shard_head had) {
    auto members = std::make_unique<one_shard>(lane, which, at, had);
    members_ = members.get();
    samples_ = std::make_unique<group_stream>(lane, std::move(members));
  }
  awaitable<result<std::optional<sample>>> next() override { co_return co_await samples_->next(); }
  std::int64_t offset() const override {
    const auto held = samples_->held();
    return held ? held->offset : members_->reader().offset();
  }
  std::int64_t given() const override {
    const auto held = samples_->held();
    return held ? held->given : members_->reader().given();
  }
  bool is_broken() const override {
    return members_->reader().is_broken() && !samples_->has_unread();
  }

 private:
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
