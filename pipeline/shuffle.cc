#include "pipeline/shuffle.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/log.h"
#include "engine/random.h"
#include "pipeline/compacted.h"
#include "pipeline/fetch.h"
#include "pipeline/shards.h"

namespace millrace {
namespace {

constexpr std::size_t record_size = 6;
constexpr std::int64_t unknown = -1;
// What is read along with a sample that is read again: it lies within the same extent, or nearly.
constexpr std::int64_t near = 4 << 20;

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
    if (auto failed = co_await fetch_what_counts()) co_return *failed;
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
      held_.push_back(std::make_unique<slot>(own->where, std::move(*own)));
    }
    if (held_.empty()) {
      draining_ = false;
      begun_ = false;
      co_return std::optional<sample>();
    }
    co_return co_await take_one();
  }

  void save(state& to) const override {
    samples_->save(to);
    const bool has_aside = aside_ || aside_at_;
    const auto position = drawing_at_.value_or(random_.position());
    to.put(id_, {static_cast<std::int64_t>(position), epoch_, draining_ ? 1 : 0, begun_ ? 1 : 0,
                 has_aside ? 1 : 0,
                 is_size_unknown_ ? unknown : static_cast<std::int64_t>(held_bytes_)});
    std::vector<origin> places;
    places.reserve(held_.size() + 1);
    for (const auto& s : held_) places.push_back(s->where);
    if (has_aside) places.push_back(aside_ ? aside_->where : *aside_at_);
    to.hold(id_, places);
  }

  void restore(const state& from) override {
    samples_->restore(from);
    const auto* r = from.find(id_);
    if (r == nullptr || r->size() != record_size) {
      throw failure(error(errc::bad_state, "the saved state has no record " + id_)
                        .hint("it was saved by a plan without this shuffle"));
    }
    begun_ = (*r)[3] != 0;
    epoch_ = (*r)[1];
    random_ = stream_of(epoch_);
    random_.seek(static_cast<std::uint64_t>((*r)[0]));
    draining_ = (*r)[2] != 0;
    is_size_unknown_ = (*r)[5] == unknown;
    held_bytes_ = is_size_unknown_ ? 0 : static_cast<std::size_t>((*r)[5]);
    for (const origin& o : from.held(id_)) held_.push_back(std::make_unique<slot>(o, std::nullopt));
    if ((*r)[4] == 0 || held_.empty()) return;
    aside_at_ = held_.back()->where;
    held_.pop_back();
  }

 private:
  // A sample that is held; it is read again when its turn comes, where it was held by the run
  // before.
  struct slot {
    origin where;
    std::optional<sample> what;
  };

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

  // What is needed of a restored state to know which samples fit.
  awaitable<std::optional<error>> fetch_what_counts() {
    if (is_size_unknown_) {
      std::vector<slot*> all;
      all.reserve(held_.size());
      for (const auto& s : held_) all.push_back(s.get());
      if (auto failed = co_await fetch(std::move(all))) co_return failed;
      is_size_unknown_ = false;
      for (const auto& s : held_) held_bytes_ += s->what->payload_bytes();
    }
    if (aside_at_) {
      auto fetched = co_await fetch_samples(lane_, memory_, {*aside_at_}, stages_before_);
      if (!fetched) co_return fetched.error();
      aside_at_.reset();
      aside_ = std::move(fetched->front());
    }
    co_return std::nullopt;
  }

  awaitable<std::optional<error>> fetch(std::vector<slot*> wanted) {
    std::vector<origin> places;
    places.reserve(wanted.size());
    for (const slot* s : wanted) places.push_back(s->where);
    auto fetched = co_await fetch_samples(lane_, memory_, std::move(places), stages_before_);
    if (!fetched) co_return fetched.error();
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i]->what = std::move((*fetched)[i]);
    co_return std::nullopt;
  }

  std::vector<slot*> near_to(const slot& wanted) const {
    std::vector<slot*> out;
    for (const auto& s : held_) {
      if (s->what || s->where.shard != wanted.where.shard) continue;
      const std::int64_t distance = s->where.offset - wanted.where.offset;
      if (distance > -near && distance < near) out.push_back(s.get());
    }
    return out;
  }

  // Samples stand in the order in which they came, which a state describes in few words.
  awaitable<outcome> take_one() {
    drawing_at_ = random_.position();  // what a state says that is saved before the sample is given
    const std::size_t i = random_.below(static_cast<std::uint32_t>(held_.size()));
    slot& drawn = *held_[i];
    std::optional<error> lost;
    if (!drawn.what) lost = co_await fetch(near_to(drawn));
    if (lost && !drawn.what) lost = co_await fetch({&drawn});
    drawing_at_.reset();
    const auto out = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    if (held_.empty()) held_bytes_ = out->what ? out->what->payload_bytes() : 0;
    if (!out->what) co_return *lost;
    held_bytes_ -= out->what->payload_bytes();
    co_return std::move(out->what);
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
  std::optional<std::uint64_t> drawing_at_;
  std::int64_t epoch_ = 0;
  bool begun_ = false;
  bool draining_ = false;
  std::vector<std::unique_ptr<slot>> held_;
  std::size_t held_bytes_ = 0;  // of all of them, read again or not yet
  bool is_size_unknown_ = false;
  std::optional<sample> aside_;     // does not fit at present
  std::optional<origin> aside_at_;  // the same, not yet read again
};

}  // namespace

void put_shuffle(state& to, const std::string& name, std::int64_t epoch,
                 const std::vector<origin>& held) {
  to.put(name, {0, epoch, 0, held.empty() ? 0 : 1, 0, unknown});
  to.hold(name, held);
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
