#include "pipeline/shuffle.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/log.h"
#include "engine/random.h"
#include "pipeline/fetch.h"
#include "pipeline/shards.h"

namespace millrace {
namespace {

constexpr std::size_t record_head = 5;

class shuffle_stream final : public stream<sample> {
 public:
  shuffle_stream(lane_context& lane, std::unique_ptr<stream<sample>> samples,
                 const shuffle_options& options, std::size_t capacity, std::size_t most_bytes,
                 std::shared_ptr<memory_share> memory)
      : lane_(lane),
        stages_before_(lane.sample_stages.size()),
        id_(lane.id("shuffle")),
        samples_(std::move(samples)),
        seed_(options.seed),
        capacity_(capacity),
        most_bytes_(most_bytes),
        memory_(std::move(memory)),
        random_(seed_, purpose::shuffle, 0, static_cast<std::uint64_t>(lane.lane)) {}

  awaitable<outcome> next() override {
    if (!to_fetch_.empty()) {
      auto fetched = co_await fetch_samples(lane_, memory_, to_fetch_, stages_before_);
      if (!fetched) co_return fetched.error();
      to_fetch_.clear();
      held_ = std::move(*fetched);
      if (std::exchange(fetch_aside_, false)) {
        aside_ = std::move(held_.back());
        held_.pop_back();
      }
      for (const sample& s : held_) held_bytes_ += s.payload_bytes();
    }
    while (!draining_ && held_.size() < capacity_) {
      if (!aside_) {
        auto more = co_await samples_->next();
        if (!more) co_return more.error();
        if (!*more) {
          draining_ = true;
          break;
        }
        if (held_.empty()) begin_epoch((*more)->where.epoch);
        aside_ = std::move(**more);
      }
      if (!fits(*aside_)) break;
      auto own = co_await compacted(memory_, *aside_);
      aside_.reset();  // only now: a state saved meanwhile must know of it
      if (!own) co_return own.error();
      held_bytes_ += own->payload_bytes();
      held_.push_back(std::move(*own));
    }
    if (held_.empty()) {
      draining_ = false;
      begun_ = false;
      co_return std::optional<sample>();
    }
    co_return take_one();
  }

  void save(state& to) const override {
    samples_->save(to);
    state::record r{static_cast<std::int64_t>(random_.position()), epoch_, draining_ ? 1 : 0,
                    begun_ ? 1 : 0, aside_ || fetch_aside_ ? 1 : 0};
    for (const sample& s : held_) append_origin(r, s.where);
    for (const origin& o : to_fetch_) append_origin(r, o);
    if (aside_) append_origin(r, aside_->where);
    to.put(id_, std::move(r));
  }

  void restore(const state& from) override {
    samples_->restore(from);
    const auto* r = from.find(id_);
    if (r == nullptr || r->size() < record_head) {
      throw failure(error(errc::bad_state, "the saved state has no record " + id_)
                        .hint("it was saved by a plan without this shuffle"));
    }
    begun_ = (*r)[3] != 0;
    epoch_ = (*r)[1];
    random_ = stream_of(epoch_);
    random_.seek(static_cast<std::uint64_t>((*r)[0]));
    draining_ = (*r)[2] != 0;
    fetch_aside_ = (*r)[4] != 0;
    to_fetch_ = origins_in(std::span(*r).subspan(record_head)).value();
  }

 private:
  random_stream stream_of(std::int64_t epoch) const {
    return {seed_, purpose::shuffle, static_cast<std::uint64_t>(epoch),
            static_cast<std::uint64_t>(lane_.lane)};
  }

  void begin_epoch(std::int64_t epoch) {
    if (begun_ && epoch == epoch_) return;
    begun_ = true;
    epoch_ = epoch;
    random_ = stream_of(epoch);
  }

  // Whether the samples held leave room for this one: a function of the samples alone, so that the
  // order does not depend on how fast the stages behind give memory back.
  bool fits(const sample& s) {
    const std::size_t room = std::min(most_bytes_, memory_->limit());
    if (held_.empty() || held_bytes_ + s.payload_bytes() <= room) return true;
    if (!std::exchange(lane_.run.told_of_short_shuffle, true)) {
      log_notice(
          fmt::format("a lane's shuffle holds {} samples instead of {}, which is what {} allow; "
                      "raise MILLRACE_MEMORY for a better shuffle",
                      held_.size(), capacity_, format_bytes(room)));
    }
    return false;
  }

  std::optional<sample> take_one() {
    const auto i = random_.below(static_cast<std::uint32_t>(held_.size()));
    std::swap(held_[i], held_.back());
    std::optional<sample> out(std::move(held_.back()));
    held_.pop_back();
    held_bytes_ -= out->payload_bytes();
    return out;
  }

  lane_context& lane_;
  std::size_t stages_before_;
  std::string id_;
  std::unique_ptr<stream<sample>> samples_;
  std::uint64_t seed_;
  std::size_t capacity_;
  std::size_t most_bytes_;
  std::shared_ptr<memory_share> memory_;
  random_stream random_;
  std::int64_t epoch_ = 0;
  bool begun_ = false;
  bool draining_ = false;
  std::vector<sample> held_;
  std::optional<sample> aside_;   // does not fit at present
  std::vector<origin> to_fetch_;  // what was held when the state was saved
  bool fetch_aside_ = false;      // the last of them is the one set aside
  std::size_t held_bytes_ = 0;
};

}  // namespace

std::vector<origin> shuffle_held(const state& from, const std::string& name) {
  const auto* r = from.find(name);
  if (r == nullptr || r->size() < record_head) return {};
  return origins_in(std::span(*r).subspan(record_head)).value();
}

void put_shuffle_held(state& to, const std::string& name, std::int64_t epoch,
                      const std::vector<origin>& held) {
  state::record r{0, epoch, 0, held.empty() ? 0 : 1, 0};
  for (const origin& o : held) append_origin(r, o);
  to.put(name, std::move(r));
}

lane_stage<sample, sample> shuffle(const shuffle_options& options) {
  if (options.samples == 0) {
    throw failure(error(errc::usage, "a shuffle of 0 samples").hint("leave the stage out"));
  }
  return {"shuffle",
          [options](lane_context& lane,
                    std::unique_ptr<stream<sample>> samples) -> std::unique_ptr<stream<sample>> {
            // A lane's part is the same for every world size.
            const std::size_t capacity = (options.samples + lane.lanes - 1) / lane.lanes;
            const std::size_t budget = lane.run.memory.budget();
            const std::size_t most =
                options.bytes > 0 ? options.bytes / lane.lanes : budget / 2 / lane.lanes_here;
            auto memory = lane.run.memory.share("shuffle", 1_MiB, most);
            return std::make_unique<shuffle_stream>(lane, std::move(samples), options, capacity,
                                                    most, std::move(memory));
          }};
}

}  // namespace millrace
