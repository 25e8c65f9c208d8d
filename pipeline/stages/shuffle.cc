#include "pipeline/stages/shuffle.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check_option.h"
#include "engine/base/divided.h"
#include "engine/base/random.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "pipeline/formats/fetch.h"
#include "pipeline/plan/compacted.h"
#include "pipeline/shards/shards.h"
#include "pipeline/state/shuffle_record.h"

namespace millrace {
namespace {

// Samples within this distance are read again together: they are in the same extent, or nearly.
constexpr std::int64_t near = 4 << 20;

class shuffle_stream final : public stream<sample> {
 public:
  // `stages_before`: the sample stages of the lane in front of it.
  shuffle_stream(lane_context& lane, std::unique_ptr<stream<sample>> samples,
                 std::size_t stages_before, const shuffle_options& options, std::size_t capacity,
                 std::size_t most_bytes, std::shared_ptr<memory_share> memory)
      : lane_(lane),
        stages_before_(stages_before),
        id_(lane.id(shuffle_record::name)),
        samples_(std::move(samples)),
        seed_(options.seed),
        capacity_(capacity),
        most_bytes_(most_bytes),
        memory_(std::move(memory)),
        spare_{.share = memory_},
        random_(seed_, purpose::shuffle, 0, static_cast<std::uint64_t>(lane.lane)) {}

  ~shuffle_stream() override { uncount_aside(); }
  shuffle_stream(const shuffle_stream&) = delete;
  shuffle_stream& operator=(const shuffle_stream&) = delete;

  awaitable<outcome> next() override {
    leave_lost_behind();
    if (auto failed = co_await fetch_what_counts()) co_return *failed;
    if (auto failed = co_await fetch_compressed()) co_return *failed;
    if (auto failed = co_await fetch_aside()) co_return *failed;
    while (!draining_ && !aside_at_ && held_.size() < capacity_) {
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
      if (!fits(size_of(*aside_))) {
        count_aside();
        break;
      }
      detail::item_name name;
      name.note(*aside_);
      const bool is_partly_here = held_of(*memory_, *aside_) > 0;
      if (has_pieces_ || is_partly_here) make_room(needed_for(*aside_));
      auto own = co_await compacted(memory_, *aside_);
      if (!own) {
        is_aside_lost_ = own.error().is_skippable();
        co_return name.named(own.error());
      }
      uncount_aside();
      aside_.reset();  // only now: a state saved during the co_await must include it
      held_bytes_ += size_of(*own);
      held_.push_back(std::make_unique<slot>(own->where, std::move(*own)));
    }
    if (held_.empty()) {
      draining_ = false;
      begun_ = false;
      co_return std::optional<sample>();
    }
    co_return co_await take_one();
  }

  void leave_failed() override {
    leave_lost_behind();
    samples_->leave_failed();
  }

  void save(state& to) const override {
    samples_->save(to);
    const bool has_aside = aside_ || aside_at_;
    const auto position = drawing_at_.value_or(random_.position());
    shuffle_record{.position = static_cast<std::int64_t>(position),
                   .epoch = epoch_,
                   .is_draining = draining_,
                   .has_begun = begun_,
                   .has_aside = has_aside,
                   .held_bytes = is_size_unknown_ ? shuffle_record::unknown
                                                  : static_cast<std::int64_t>(held_bytes_)}
        .put(to, id_);
    std::vector<origin> places;
    places.reserve(held_.size() + 1);
    for (const auto& s : held_) places.push_back(s->where);
    if (has_aside) places.push_back(aside_ ? aside_->where : *aside_at_);
    to.hold(id_, places);
  }

  void restore(const state& from) override {
    samples_->restore(from);
    const auto saved = shuffle_record::in(from, id_);
    begun_ = saved.has_begun;
    epoch_ = saved.epoch;
    random_ = stream_of(epoch_);
    random_.seek(static_cast<std::uint64_t>(saved.position));
    draining_ = saved.is_draining;
    is_size_unknown_ = saved.held_bytes == shuffle_record::unknown;
    held_bytes_ = is_size_unknown_ ? 0 : static_cast<std::size_t>(saved.held_bytes);
    is_restored_ = true;
    for (const origin& o : from.held(id_)) {
      held_.push_back(std::make_unique<slot>(o, std::nullopt, !is_size_unknown_));
    }
    if (!saved.has_aside || held_.empty()) return;
    aside_at_ = held_.back()->where;
    held_.pop_back();
  }

 private:
  // A held sample. If it was held by an earlier run, it is read again when it is drawn.
  struct slot {
    origin where;
    std::optional<sample> what;
    bool is_counted = true;  // in held_bytes_
    std::pair<std::int64_t, std::int64_t> place() const { return {where.shard, where.offset}; }
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

  // Whether the held samples leave room for this one. Depends on the samples alone, so that the
  // order does not depend on how fast downstream stages release memory.
  bool fits(std::size_t size) {
    const std::size_t room = std::min(most_bytes_, memory_->limit());
    if (held_.empty() || held_bytes_ + size <= room) return true;
    if (!std::exchange(lane_.run.reported_short_shuffle, true)) {
      log_notice(fmt::format(
          "a lane's shuffle holds {} instead of {}: no more fit in its {} of memory; "
          "raise {} for a better shuffle",
          counted(held_.size(), "sample"), capacity_, format_bytes(room),
          most_bytes_ <= memory_->limit() ? "shuffle_options.bytes"
                                          : "engine_options.memory_bytes (MILLRACE_MEMORY)"));
    }
    return false;
  }

  // Bytes of the share for a sample with memory of its own, including its names.
  static std::size_t size_of(const sample& s) { return charge_of(s.payload_bytes()) + names_of(s); }
  static std::size_t names_of(const sample& s) {
    std::size_t names = s.key.size();
    for (const field& f : s.fields) names += f.extension.size();
    return names;
  }

  // Bytes of the share in use for held samples, including their names.
  std::size_t in_memory() const {
    std::size_t sum = 0;
    for (const auto& s : held_) sum += s->what ? charged(*s->what) : 0;
    return sum;
  }
  std::size_t charged(const sample& s) const {
    const std::size_t here = held_of(*memory_, s);
    return here == 0 ? 0 : here + names_of(s);
  }
  // The same after the sample has moved there completely.
  std::size_t needed_for(const sample& s) const {
    std::size_t elsewhere = 0;
    for (const field& f : s.fields) elsewhere += f.data.are_of(*memory_) ? 0 : f.data.size();
    return held_of(*memory_, s) + charge_of(elsewhere) + names_of(s);
  }

  // Counts the sample aside while it is in the lane's memory, so that again_reader does not wait
  // for that memory.
  void count_aside() {
    uncount_aside();
    const lane_context& reader = lane_.reader_of(aside_->where.shard);
    counted_ = {reader.memory.held_members, held_of(*reader.memory.members, *aside_)};
    *counted_.first += counted_.second;
  }
  void uncount_aside() {
    if (counted_.first) *counted_.first -= counted_.second;
    counted_ = {};
  }

  // Reads samples whose sizes a restored state lacks, which is needed to know which samples fit.
  awaitable<std::optional<error>> fetch_what_counts() {
    if (is_size_unknown_) {
      again_reader again(lane_, stages_before_, &spare_);
      std::vector<slot*> all;
      all.reserve(held_.size());
      for (const auto& s : held_) {
        if (!s->is_counted) all.push_back(s.get());
      }
      std::ranges::sort(all, {}, &slot::place);
      for (slot* s : all) {
        auto found = co_await read(again, s->where, false);
        if (!found && found.error().is_skippable()) lost_ = index_of(*s);
        if (!found) co_return found.error();
        held_bytes_ += size_of(*found);
        s->is_counted = true;
        if (auto failed = co_await keep(*s, std::move(*found), false)) co_return failed;
      }
      is_size_unknown_ = false;
    }
    co_return std::nullopt;
  }

  // Reads the sample aside once it fits, or at once if it could not be read again later.
  awaitable<std::optional<error>> fetch_aside() {
    if (!aside_at_ || (aside_size_ && !fits(*aside_size_))) co_return std::nullopt;
    const bool now_or_never = reads_through(lane_, aside_at_->shard);
    // A sample that stays aside must not use memory meant for held samples.
    const bool may_stay = now_or_never && !aside_size_;
    again_reader again(lane_, stages_before_, may_stay ? nullptr : &spare_);
    auto found = co_await read(again, *aside_at_, true);
    if (!found) {
      is_aside_lost_ = found.error().is_skippable();
      co_return found.error();
    }
    aside_size_ = size_of(*found);
    if (!now_or_never && !fits(*aside_size_)) co_return std::nullopt;
    aside_at_.reset();
    aside_size_.reset();
    aside_ = std::move(*found);
    count_aside();
    co_return std::nullopt;
  }

  std::size_t index_of(const slot& wanted) const {
    const auto is_it = [&](const auto& s) { return s.get() == &wanted; };
    return static_cast<std::size_t>(std::ranges::find_if(held_, is_it) - held_.begin());
  }

  // Reads samples of compressed shards again before the lane opens its own shard: a lane has room
  // for one decoder's window. Losses are reported when the sample is drawn.
  awaitable<std::optional<error>> fetch_compressed() {
    if (!std::exchange(is_restored_, false)) co_return std::nullopt;
    again_reader again(lane_, stages_before_, &spare_);
    std::vector<slot*> all;
    for (const auto& s : held_) {
      if (!s->what && reads_through(lane_, s->where.shard)) all.push_back(s.get());
    }
    std::ranges::sort(all, {}, &slot::place);
    // held over co_await: only one reader at a time changes what is held
    for (slot* s : all) {
      auto found = co_await read(again, s->where, false);
      if (!found && !found.error().is_skippable()) co_return found.error();
      if (!found) continue;
      if (auto failed = co_await keep(*s, std::move(*found), false)) co_return failed;
      if (!s->what) break;
    }
    co_return std::nullopt;
  }

  // `waits` as in keep(). If the budget has no room at present, only this sample is lost, and
  // reading its shard continues.
  awaitable<result<sample>> read(again_reader& again, origin where, bool waits) {
    const std::size_t held = waits ? in_memory() : memory_->in_use();
    spare_.held = held;
    auto found = co_await again.read(where);
    if (spare_.held > held) again.close();  // it may keep the beginning of the next sample there
    if (found || found.error().kind() != errc::too_large || found.error().is_skippable()) {
      co_return found;
    }
    error why = found.error();
    co_return std::move(why.offset(static_cast<std::uint64_t>(where.offset)).skippable());
  }

  // Keeps a sample that was read again, if there is room with the others; `waits` for memory that
  // later stages still hold.
  awaitable<std::optional<error>> keep(slot& s, sample found, bool waits) {
    const std::size_t others = waits ? in_memory() : memory_->in_use() - held_of(*memory_, found);
    if (others + needed_for(found) > memory_->limit()) co_return std::nullopt;
    auto own = co_await compacted(memory_, std::move(found));
    if (!own) co_return own.error();
    s.what = std::move(*own);
    has_pieces_ |= held_of(*memory_, *s.what) > charge_of(s.what->payload_bytes());
    co_return std::nullopt;
  }

  // Drops samples that were read again, which are then read once more: a run with more memory may
  // have held more than fits. Drops those of compressed shards only if the others are not enough.
  void make_room(std::size_t size) {
    std::size_t taken = in_memory();
    for (const bool is_compressed : {false, true}) {
      for (auto s = held_.rbegin(); s != held_.rend(); ++s) {
        if (taken + size <= memory_->limit()) return;
        if (!(*s)->what || reads_through(lane_, (*s)->where.shard) != is_compressed) continue;
        taken -= charged(*(*s)->what);
        (*s)->what.reset();
      }
    }
  }

  // The sample is read again once it fits.
  void let_go_of_aside() {
    aside_at_ = aside_->where;
    aside_size_ = size_of(*aside_);
    uncount_aside();
    aside_.reset();
  }

  // If the sample lacks room, drops held samples to make room.
  awaitable<result<sample>> read_wanted(again_reader& again, const slot& wanted) {
    auto found = co_await read(again, wanted.where, true);
    if (found || found.error().kind() != errc::too_large) co_return found;
    again.close();
    make_room(memory_->limit());
    co_return co_await read(again, wanted.where, true);
  }

  // Reads a sample again, with those close to it as far as there is room.
  awaitable<std::optional<error>> fetch(slot& wanted) {
    again_reader again(lane_, stages_before_, &spare_);
    // The lane has room for the sample it is assembling, plus one of: the sample aside, or a sample
    // that is read again with what follows it.
    if (aside_ && !reads_through(lane_, aside_->where.shard)) let_go_of_aside();
    detail::item_name name;
    // held over co_await: the list is local, and only one reader at a time changes what is held
    for (slot* s : near_to(wanted)) {
      auto found =
          s == &wanted ? co_await read_wanted(again, *s) : co_await read(again, s->where, false);
      if (!found && (s == &wanted || !found.error().is_skippable())) co_return found.error();
      if (!found) continue;  // reported when it is drawn
      if (s == &wanted) {
        name.note(*found);
        make_room(needed_for(*found));
      }
      auto failed = co_await keep(*s, std::move(*found), s == &wanted);
      if (failed && (s == &wanted || !failed->is_skippable())) co_return failed;
    }
    if (wanted.what) co_return std::nullopt;
    co_return name.named(error(errc::too_large,
                               "a sample that was held when the state was saved is larger "
                               "than what is left of the budget for the shuffle")
                             .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)")
                             .skippable());
  }

  // The samples close to `wanted`, including it, in their order within the shard.
  std::vector<slot*> near_to(const slot& wanted) const {
    std::vector<slot*> out;
    for (const auto& s : held_) {
      if (s->what || s->where.shard != wanted.where.shard) continue;
      const std::int64_t distance = s->where.offset - wanted.where.offset;
      if (distance > -near && distance < near) out.push_back(s.get());
    }
    std::ranges::sort(out, {}, &slot::place);
    return out;
  }

  // held_ stays in order of arrival, which a state stores compactly.
  awaitable<outcome> take_one() {
    drawing_at_ = random_.position();  // the position to save until the sample has been yielded
    const std::size_t i = random_.below(static_cast<std::uint32_t>(held_.size()));
    // held over co_await: only one reader at a time changes what is held
    slot& drawn = *held_[i];
    std::optional<error> lost;
    if (!drawn.what) lost = co_await fetch(drawn);
    if (lost && !lost->is_skippable()) co_return *lost;
    if (!drawn.what) {
      lost_ = i;
      co_return *lost;
    }
    drawing_at_.reset();
    const auto out = taken_out(i);
    held_bytes_ -= size_of(*out->what);
    co_return std::move(out->what);
  }

  std::unique_ptr<slot> taken_out(std::size_t i) {
    auto out = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    if (held_.empty()) held_bytes_ = out->what ? size_of(*out->what) : 0;
    return out;
  }

  // The next call continues after a sample that could not be read again or kept.
  void leave_lost_behind() {
    if (std::exchange(is_aside_lost_, false)) {
      uncount_aside();
      aside_.reset();
      aside_at_.reset();
      aside_size_.reset();
    }
    if (!lost_) return;
    taken_out(*std::exchange(lost_, std::nullopt));
    drawing_at_.reset();
  }

  lane_context& lane_;
  std::size_t stages_before_;
  std::string id_;
  std::unique_ptr<stream<sample>> samples_;
  std::uint64_t seed_;
  std::size_t capacity_;
  std::size_t most_bytes_;
  std::shared_ptr<memory_share> memory_;
  spare_memory spare_;
  bool has_pieces_ = false;  // a held sample is in several blocks and takes more than size_of()
  random_stream random_;
  std::optional<std::uint64_t> drawing_at_;
  std::optional<std::size_t> lost_;  // index into held_: the last call returned an error for it
  bool is_aside_lost_ = false;       // the last call returned an error for the sample aside
  std::int64_t epoch_ = 0;
  bool begun_ = false;
  bool draining_ = false;
  std::vector<std::unique_ptr<slot>> held_;
  std::size_t held_bytes_ = 0;  // of all held samples, read again or not
  bool is_size_unknown_ = false;
  bool is_restored_ = false;     // nothing has been read since
  std::optional<sample> aside_;  // taken from upstream; does not fit at present
  // The counter that includes the sample aside, and the bytes counted there.
  std::pair<std::shared_ptr<std::size_t>, std::size_t> counted_;
  std::optional<origin> aside_at_;         // where to read the sample aside again
  std::optional<std::size_t> aside_size_;  // of the sample at `aside_at_`, once known
};

}  // namespace

shuffle_stage shuffle(const shuffle_options& options) {
  check_option("shuffle_options.samples", options.samples, 1, ~std::size_t{0});
  return {options};
}

lane_plan<sample> operator|(lane_plan<sample> front, const shuffle_stage& back) {
  if (std::exchange(front.traits.is_shuffled, true)) {
    throw failure(error(errc::usage, "two shuffles, one after the other")
                      .hint("use one that holds as many samples as both"));
  }
  // While a shuffle reads held samples again, samples that a window has read ahead would occupy
  // the memory.
  if (front.traits.reads_ahead) {
    throw failure(error(errc::usage, "shuffle() after window_shuffle()")
                      .hint("a window is a shuffle: set window_options.samples"));
  }
  auto make = [options = back.options, stages_before = front.traits.sample_stages.size()](
                  lane_context& lane,
                  std::unique_ptr<stream<sample>> samples) -> std::unique_ptr<stream<sample>> {
    // A lane's part is the same for every world size.
    const std::size_t capacity = divided_up(options.samples, lane.lanes);
    const std::size_t budget = lane.run.memory.budget();
    const std::size_t most =
        options.bytes > 0 ? options.bytes / lane.lanes : budget / 2 / lane.lanes_here;
    auto memory = lane.run.memory.share("shuffle", 1_MiB, most);
    return std::make_unique<shuffle_stream>(lane, std::move(samples), stages_before, options,
                                            capacity, most, std::move(memory));
  };
  return std::move(front) |
         lane_stage<sample, sample>{.name = "shuffle",
                                    .wrap = std::move(make),
                                    .takes_ahead = true,
                                    .unchanged = true,
                                    .records = {{shuffle_record::name, shuffle_record::deal}}};
}

}  // namespace millrace
