#include "pipeline/stages/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <set>

#include "engine/base/words.h"
#include "engine/host/log.h"
#include "io/standard_sources.h"
#include "pipeline/formats/fetch.h"
#include "pipeline/shards/redeal.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/stages/lane.h"
#include "pipeline/stages/no_samples.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

constexpr std::size_t chunk_read_again = std::size_t{256} << 10;

// Extends the fingerprint of a list by what its formats say and its names do not.
std::uint64_t with_formats(const lane_context& lane, std::uint64_t list) {
  const std::uint64_t identity = lane.format ? lane.format->identity() : 0;
  if (identity != 0) list = fingerprint(fmt::format("{:016x}\n", identity), list);
  for (const auto& part : lane.parts) list = with_formats(*part.lane, list);
  return list;
}

class lanes_stream final : public stream<sample> {
 public:
  lanes_stream(std::vector<lane> lanes, const shard_list_options& options,
               const std::vector<std::string>& shards, std::vector<lane_dealer> records)
      : lanes_(std::move(lanes)),
        records_(std::move(records)),
        options_(options),
        shards_(shards.size()),
        epoch_(options.first_epoch) {
    std::uint64_t list = fingerprint("");
    for (const std::string& url : shards) list = fingerprint(url + "\n", list);
    if (!lanes_.empty()) list = with_formats(*lanes_.front().context, list);
    list_ = static_cast<std::int64_t>(list);
    if (options.index)
      list_and_lengths_ = static_cast<std::int64_t>(with_lengths(*options.index, list));
    identity_ = {.list = list_of(options.lane_count()),
                 .seed = static_cast<std::int64_t>(options.seed),
                 .lanes = options.lane_count(),
                 .mode = static_cast<std::int64_t>(options.mode),
                 .is_shuffled = options.shuffle};
  }

  awaitable<outcome> next() override {
    lanes_stream::leave_failed();
    pass_over_held();
    for (;;) {
      lane* turn = nullptr;
      for (lane& l : lanes_) {
        // After the last epoch a lane is not asked for anything and does not end: a run of more
        // epochs continues there.
        const bool is_over = is_past_last() && l.pending.empty();
        const bool has_next = !is_over && !l.done() && l.next_place().first <= epoch_;
        if (has_next && (turn == nullptr || l.next_place() < turn->next_place())) turn = &l;
      }
      if (turn == nullptr) co_return end_of_epoch();
      const bool is_passed_over = is_in_stretch(turn->next_place());
      if (!turn->pending.empty()) {
        auto taken = co_await take_pending(*turn);
        if (!taken) continue;
        co_return std::move(*taken);
      }
      auto next = co_await turn->samples->next();
      if (!next) co_return failed_with(*turn, next.error());
      if (!*next) {
        turn->ended = true;
        count_lost(*turn);
        continue;
      }
      any_this_epoch_ = true;
      (*next)->where.position = turn->next_position();
      (*next)->where.epoch = turn->epoch;
      ++turn->given;
      if (is_passed_over) {
        pass_over(*turn, 1);
        continue;
      }
      co_return next;
    }
  }

  void leave_failed() override {
    if (failed_) {
      lane& of = lanes_[static_cast<std::size_t>(*failed_)];
      ++of.failed;
      if (!failed_pending_) of.samples->leave_failed();
    }
    failed_.reset();
    if (!failed_pending_) return;
    lane& l = lanes_[static_cast<std::size_t>(*failed_pending_)];
    failed_pending_.reset();
    leave_pending(l);
  }

  void save(state& to) const override {
    identity_.put(to);
    std::vector<lane_record> records;
    for (const lane& l : lanes_) {
      const std::size_t before = to.held(pending_record).size();
      l.samples->save(to);
      to.hold(pending_record, std::span(l.pending).last(l.failed_pending));
      const auto failed = to.held_from(pending_record, before);
      l.place(failed);
      const std::int64_t again = std::ssize(failed);
      if (again > 0) to.append(failed_record, std::array{l.context->lane, again});
      records.push_back({l.context->lane, l.epoch, l.given + again, l.ended, l.failed});
      to.hold(pending_record, std::span(l.pending).first(l.pending.size() - l.failed_pending));
    }
    if (to.find(end_owed_record) != nullptr)
      throw failure(error(errc::usage, "a stage of a lane adds to end_owed_record"));
    put_lane_records(to, records);
    for (const lane& l : lanes_) {
      if (l.consumer) to.append(consumers_record, std::array{l.context->lane, *l.consumer});
    }
    to.put(base_record, {std::ranges::max_element(lanes_, {}, &lane::base)->base});
    const auto in_tail = [&](const lane& l) { return l.epoch == tail_.epoch; };
    if (std::ranges::any_of(lanes_, in_tail)) {
      put_tail(to, tail_);
      if (const auto lengths = lengths_of_tail()) to.put(tail_lengths_record, {*lengths});
    }
    to.put(epoch_record, {epoch_});
    if (ends_past_ > 0) to.put(ends_past_record, {ends_past_});
    if (stretch_) stretch_->put(to);
  }

  void restore(const state& saved_by) override {
    const auto identity = plan_record::in(saved_by);
    const bool other_lanes = identity && identity->lanes != identity_.lanes;
    const state from = other_lanes ? redealt(saved_by, identity_.lanes, records_) : saved_by;
    check_identity(from);
    epoch_ = consumers_epoch(from);
    ends_past_ = 0;
    const auto saved = lane_records(from);
    tail_ = tail_in(from);
    stretch_ = stretch_record::in(from);
    passed_over_ = 0;
    has_passed_held_ = false;
    check_lengths(from);
    any_ever_ =
        epoch_ > options_.first_epoch || !tail_.levels.empty() ||
        std::ranges::any_of(saved, [&](const lane_record& l) {
          return is_mine(l.lane) && l.given > static_cast<std::int64_t>(failed_in(from, l.lane));
        });
    for (lane& l : lanes_) {
      restore_lane(l, saved, from);
      l.context->restore(from);
      l.base = l.epoch == epoch_ ? position_base(from) : 0;
      l.consumer = consumer_of(from, l.context->lane);
      l.samples->restore(from);
      const bool was_dealt = !tail_.levels.empty() && tail_.epoch == l.epoch;
      if (was_dealt) check_can_read(*l.context);
      for (const origin& o : l.pending) check_can_read(*l.context, o.shard);
    }
    check_all_taken(from);
  }

 private:
  // Fails if no stage has restored some record of a lane: without the shuffle that held them,
  // samples would be lost. Restored is what the lane would save now.
  void check_all_taken(const state& from) const {
    state now;
    for (const lane& l : lanes_) l.samples->save(now);
    std::set<std::string, std::less<>> mine;
    for (const lane& l : lanes_) mine.insert(l.context->id(""));
    const auto refuse_where = [&](std::string_view name, bool is_taken) {
      const bool is_mine = mine.contains(name.substr(0, name.find('/') + 1));
      if (!is_mine || is_taken) return;
      throw failure(
          error(errc::bad_state,
                fmt::format("no stage of this plan has the saved state's record {}", name))
              .hint("resume with the stages that it was saved with, such as the shuffle"));
    };
    for (const auto& [name, values] : from.records()) {
      refuse_where(name, now.find(name) != nullptr);
    }
    for (const auto& [name, held] : from.all_held()) {
      refuse_where(name, now.held(name).size() == held.size());
    }
  }

  bool is_mine(std::int64_t number) const {
    return std::ranges::any_of(lanes_, [&](const lane& l) { return l.context->lane == number; });
  }

  // Identifies the list. Lengths affect the order only if samples are assigned, not shards.
  std::int64_t list_of(std::int64_t lanes) const {
    return deals(lanes) ? list_and_lengths_.value_or(list_) : list_;
  }
  bool deals(std::int64_t lanes) const {
    return deals_samples(shards_, options_, static_cast<std::size_t>(lanes));
  }

  void check_identity(const state& from) const {
    plan_record needed = identity_;
    needed.list = list_of(lanes_of_list(from));
    const state::record mine = needed.of();
    const auto* other = from.find(plan_record::name);
    if (other != nullptr && *other == mine) return;
    throw failure(error(errc::bad_state,
                        "the saved state belongs to another plan: " + difference(other, mine))
                      .hint("resume with the same shards, index, seed and mode"));
  }

  // The lanes that began the tail's epoch may have been assigned samples although neither these
  // lanes nor those that saved the state are. Then the lengths must still be the same.
  void check_lengths(const state& from) const {
    if (tail_.levels.empty()) return;
    const auto* saved = from.find(tail_lengths_record);
    const auto mine = lengths_of_tail();
    // Without a record, the list was compared with its lengths, or shards were assigned.
    const bool fits = saved != nullptr ? mine && *saved == state::record{*mine}
                                       : !mine || deals(lanes_of_list(from));
    if (fits) return;
    throw failure(error(errc::bad_state,
                        "the saved state belongs to another plan: its epoch was begun with "
                        "another index")
                      .hint("resume with the same index"));
  }
  std::optional<std::int64_t> lengths_of_tail() const {
    if (tail_.levels.empty() || !deals(std::ssize(tail_.levels.front()))) return std::nullopt;
    return list_and_lengths_;
  }

  static std::string difference(const state::record* other, const state::record& mine) {
    static constexpr std::array names = {"the list of shards or its index", "the seed",
                                         "the number of lanes", "the epoch mode",
                                         "the shuffling of shards"};
    if (other == nullptr || other->size() < names.size()) return "it has no record of its plan";
    std::size_t i = 1;  // the list last: what identifies it depends on the others
    while (i < names.size() && (*other)[i] == mine[i]) ++i;
    return std::string(names[i % names.size()]) + " differs";
  }

  bool is_past_last() const {
    return options_.mode != epoch_mode::resample &&
           epoch_ >= options_.first_epoch + options_.epochs;
  }

  // Notes an error of a lane's own stages. The lane's place is before it until the next call.
  error failed_with(lane& l, error why) {
    ++l.context->drawn->items;
    failed_ = &l - lanes_.data();
    if (!first_failure_) first_failure_ = why;
    return why;
  }

  static void restore_lane(lane& l, const std::vector<lane_record>& saved, const state& from) {
    const auto mine = std::ranges::find(saved, l.context->lane, &lane_record::lane);
    if (mine != saved.end()) {
      l.epoch = mine->epoch;
      l.given = mine->given;
      l.ended = mine->ended && !was_past_last(*mine, saved, from);
      l.failed = mine->failed;
    } else {
      throw failure(
          error(errc::bad_state, fmt::format("the saved state has no lane {}", l.context->lane))
              .hint("resume a job of several ranks from the states of all ranks"));
    }
    for (const origin& o : from.held(pending_record)) {
      if (o.lane == l.context->lane) l.pending.push_back(o);
    }
    std::ranges::sort(l.pending, {}, &origin::place);
    l.failed_pending = std::min(failed_in(from, l.context->lane), l.pending.size());
    l.given -= static_cast<std::int64_t>(l.failed_pending);
  }

  // Older versions let lanes end after the last epoch as well: for a plan of more epochs, the next
  // one would be over before it began.
  static bool was_past_last(const lane_record& l, const std::vector<lane_record>& saved,
                            const state& from) {
    return from.find(ends_past_record) != nullptr && l.given == 0 &&
           l.epoch == std::ranges::max(saved, {}, &lane_record::epoch).epoch;
  }

  // nullopt: the stages that failed on the sample now drop it.
  awaitable<std::optional<outcome>> take_pending(lane& l) {
    if (!l.again) {
      l.again = std::make_unique<again_reader>(*l.context, l.context->sample_stages.size());
    }
    // One at a time, so that any number of them needs no more memory than other samples.
    const bool is_given = l.is_given_next();
    const std::int64_t position = l.next_place().second;
    auto fetched = co_await l.again->take(l.pending.front(), !is_given);
    // Pending until here: a state saved meanwhile, or after an error, must list the sample.
    if (!fetched) {
      failed_pending_ = &l - lanes_.data();
      co_return outcome(is_given ? fetched.error() : failed_with(l, fetched.error()));
    }
    leave_pending(l);
    if (!*fetched) co_return std::nullopt;
    any_this_epoch_ = true;
    if (!is_given) {
      (*fetched)->where.position = position;
      ++l.given;
      if (is_in_stretch({l.epoch, position})) {
        pass_over(l, 1);
        co_return std::nullopt;
      }
    }
    co_return outcome(std::move(*fetched));
  }

  static void leave_pending(lane& l) {
    if (!l.is_given_next()) --l.failed_pending;
    l.pending.erase(l.pending.begin());
    if (l.pending.empty()) l.again.reset();  // earlier stages may read again as well
  }

  // Whether the sample that is next of all is to be passed over. The first that is not ends the
  // stretch.
  bool is_in_stretch(const std::pair<std::int64_t, std::int64_t>& place) {
    if (!stretch_ || place.first < stretch_->epoch) return false;
    if (stretch_->has(place)) return true;
    end_stretch("");
    return false;
  }
  void pass_over(const lane& l, std::size_t samples) {
    l.context->run.counts.dropped += samples;
    passed_over_ += samples;
    any_this_epoch_ = true;
  }
  // Samples that would be read again: those that later stages held.
  void pass_over_held() {
    if (!stretch_ || std::exchange(has_passed_held_, true)) return;
    for (lane& l : lanes_) {
      const auto failed = l.pending.end() - static_cast<std::ptrdiff_t>(l.failed_pending);
      const auto passed = std::ranges::remove_if(
          l.pending.begin(), failed, [&](const origin& o) { return stretch_->has(o.place()); });
      const std::size_t n = passed.size();
      l.pending.erase(passed.begin(), passed.end());
      if (n > 0) pass_over(l, n);
    }
  }
  void end_stretch(std::string_view why) {
    log_notice(fmt::format("epoch {}: passed over {}{}{}", stretch_->epoch,
                           counted(passed_over_, "sample"), of_this_rank(options_), why));
    stretch_.reset();
  }

  // Counts the samples of a lane's epoch that the index has and the lane has not given: the rest of
  // broken shards. Unknown if other lanes began the epoch, or if earlier stages leave samples out.
  void count_lost(const lane& l) {
    const lane_context& lane = *l.context;
    const bool is_known = options_.index && options_.mode != epoch_mode::resample &&
                          l.epoch < options_.first_epoch + options_.epochs &&
                          !lane.leaves_samples_out &&
                          (tail_.levels.empty() || tail_.epoch != l.epoch);
    if (!is_known) return;
    lane.run.knows_losses = true;
    std::int64_t expected = 0;
    for (const shard_ref& ref : epoch_order(*lane.shards, options_, l.epoch).lane(lane.lane)) {
      const auto shard = static_cast<std::size_t>(ref.shard);
      expected += ref.samples >= 0 ? ref.samples : options_.index->shards[shard].samples;
    }
    const std::int64_t lost = expected - l.given - l.failed;
    lane.run.counts.lost += static_cast<std::uint64_t>(std::max<std::int64_t>(lost, 0));
    (lost > 0 ? lost_ : surplus_) += std::abs(lost);
  }

  void tell_losses(std::int64_t epoch) {
    const auto lost = std::exchange(lost_, 0);
    const auto surplus = std::exchange(surplus_, 0);
    if (lost > 0) {
      log_notice(fmt::format(
          "epoch {}: {} of the index lost with broken shards; the list of skipped samples names "
          "the shards",
          epoch, counted(static_cast<std::uint64_t>(lost), "sample")));
    }
    if (surplus > 0) {
      log_notice(fmt::format("epoch {}: {} more than the index says; {}", epoch,
                             counted(static_cast<std::uint64_t>(surplus), "sample"),
                             index_again_hint));
    }
  }

  outcome end_of_epoch() {
    if (is_past_last()) {
      ++ends_past_;
      return std::optional<sample>();
    }
    const bool empty =
        !std::exchange(any_this_epoch_, false) && std::ranges::all_of(lanes_, [&](const lane& l) {
          return l.epoch == epoch_ && l.given == 0;
        });
    // A state saved after this error resumes before it.
    if (empty && !any_ever_) return no_samples(lanes_, options_, first_failure_);
    if (stretch_ && stretch_->epoch <= epoch_) end_stretch(": it ended within the stretch");
    ++epoch_;
    for (lane& l : lanes_) {
      if (l.epoch >= epoch_) continue;  // had begun it before the state was saved
      ++l.epoch;
      l.base = 0;
      l.given = 0;
      l.failed = 0;
      l.ended = false;
    }
    tell_losses(epoch_ - 1);
    any_ever_ = any_ever_ || !empty;
    return std::optional<sample>();
  }

  std::vector<lane> lanes_;
  std::vector<lane_dealer> records_;  // of the lanes' stages
  shard_list_options options_;
  std::size_t shards_;
  std::int64_t list_ = 0;                         // a fingerprint
  std::optional<std::int64_t> list_and_lengths_;  // if there is an index
  plan_record identity_;
  epoch_tail tail_;
  std::int64_t epoch_;          // the current one; lanes of a restored state may be ahead
  std::int64_t ends_past_ = 0;  // ends returned after the last epoch's: no epoch ended there
  bool any_this_epoch_ = false;
  bool any_ever_ = false;
  std::optional<error> first_failure_;
  // The lane whose error the last call returned: of its stages, or of a sample read again.
  std::optional<std::ptrdiff_t> failed_;
  std::optional<std::ptrdiff_t> failed_pending_;
  std::optional<stretch_record> stretch_;  // to pass over
  std::uint64_t passed_over_ = 0;          // of it, by this run
  bool has_passed_held_ = false;
  // Missing and surplus samples of the epoch over all lanes, compared with the index.
  std::int64_t lost_ = 0;
  std::int64_t surplus_ = 0;
};

// Throws `failure` (usage) if lengths are known and this rank has less than one batch.
void check_batches(const run_context& run, const shard_list_options& o, std::size_t lanes,
                   std::size_t lanes_here) {
  if (!o.index || o.mode == epoch_mode::resample || !run.downstream.batches ||
      !run.downstream.batches->drops_last) {
    return;
  }
  const std::int64_t here =
      o.index->samples() / static_cast<std::int64_t>(lanes) * static_cast<std::int64_t>(lanes_here);
  const int batch_size = run.downstream.batches->size;
  if (here >= batch_size) return;
  throw failure(
      error(errc::usage,
            fmt::format("a batch of {} is more than this rank's part of {}, which is about {}",
                        batch_size,
                        counted(static_cast<std::uint64_t>(o.index->samples()), "sample"), here))
          .hint("use smaller batches or fewer ranks, or keep the last batch"));
}

std::unique_ptr<stream<sample>> make_lanes(run_context& run, const lane_plan<sample>& plan) {
  const shard_list_options& o = *plan.options;
  const auto count = static_cast<std::size_t>(o.lane_count());
  run.place.rank = o.rank;
  run.place.world_size = o.world_size;
  run.source.working_set_bytes = working_set_of(*plan.shards);
  run.source.quick_start = true;
  run.source_again = run.source;
  run.source_again.chunk_bytes = std::min(run.source.chunk_bytes, chunk_read_again);
  run.source_again.read_ahead = 1;
  std::vector<lane> lanes;
  std::vector<std::size_t> mine;
  for (std::size_t l = 0; l < count; ++l) {
    if (o.rank_of(static_cast<std::int64_t>(l)) == o.rank) mine.push_back(l);
  }
  if (mine.empty()) {
    throw failure(error(errc::usage,
                        fmt::format("none of the {} lanes is assigned to rank {}", count, o.rank)));
  }
  run.place.lanes.assign(mine.begin(), mine.end());
  run.place.lanes_in_all = static_cast<std::int64_t>(count);
  check_batches(run, o, count, mine.size());
  for (const std::size_t l : mine) {
    lane made;
    made.context = plan.traits.lane_of(run, static_cast<std::int64_t>(l), count, mine.size());
    made.epoch = o.first_epoch;
    made.samples = plan.make(*made.context);
    if (made.context->drawn->is_endless()) run.place.drawn->of_parts.push_back(made.context->drawn);
    lanes.push_back(std::move(made));
  }
  return std::make_unique<lanes_stream>(std::move(lanes), o, *plan.shards, plan.traits.records);
}

}  // namespace

plan<sample> interleaved(lane_plan<sample> lanes) {
  detail::check_not_empty(lanes.make && lanes.shards && lanes.options);
  return {[lanes = std::move(lanes)](run_context& run) {
    return detail::measured(run, "lanes", make_lanes(run, lanes));
  }};
}

}  // namespace millrace
