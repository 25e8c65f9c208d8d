#include "pipeline/stages/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "engine/log.h"
#include "engine/words.h"
#include "io/standard_sources.h"
#include "pipeline/formats/fetch.h"
#include "pipeline/records.h"
#include "pipeline/redeal.h"
#include "pipeline/stages/lane.h"

namespace millrace {
namespace {

constexpr std::size_t chunk_read_again = 256_KiB;

// With what the formats of a list say that its names do not.
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
    identity_ = {list_of(options.lane_count()), static_cast<std::int64_t>(options.seed),
                 options.lane_count(), static_cast<std::int64_t>(options.mode),
                 options.shuffle ? 1 : 0};
  }

  awaitable<outcome> next() override {
    lanes_stream::leave_failed();
    for (;;) {
      lane* turn = nullptr;
      for (lane& l : lanes_) {
        // After the last epoch a lane has nothing to be asked for, and comes to no end: a run of
        // more epochs goes on there.
        const bool is_over = is_past_last() && l.pending.empty();
        const bool has_next = !is_over && !l.done() && l.next_place().first <= epoch_;
        if (has_next && (turn == nullptr || l.next_place() < turn->next_place())) turn = &l;
      }
      if (turn == nullptr) co_return end_of_epoch();
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
    to.put(plan_record, identity_);
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
  }

  void restore(const state& saved_by) override {
    const auto* identity = saved_by.find(plan_record);
    const bool other_lanes = identity != nullptr && identity->size() == identity_.size() &&
                             (*identity)[plan_record_lanes] != identity_[plan_record_lanes];
    const state from =
        other_lanes ? redealt(saved_by, identity_[plan_record_lanes], records_) : saved_by;
    check_identity(from);
    epoch_ = consumers_epoch(from);
    ends_past_ = 0;
    const auto saved = lane_records(from);
    tail_ = tail_in(from);
    check_lengths(from);
    any_ever_ =
        epoch_ > options_.first_epoch || !tail_.levels.empty() ||
        std::ranges::any_of(saved, [&](const lane_record& l) {
          return is_mine(l.lane) && l.given > static_cast<std::int64_t>(failed_in(from, l.lane));
        });
    for (lane& l : lanes_) {
      restore_lane(l, saved, from);
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
  // What the state says of a lane, some stage of it must have taken: what a shuffle held is gone
  // without that shuffle. Taken is what the lane would save now.
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

  // What tells the list apart. Lengths decide the order only where samples are dealt.
  std::int64_t list_of(std::int64_t lanes) const {
    return deals(lanes) ? list_and_lengths_.value_or(list_) : list_;
  }
  bool deals(std::int64_t lanes) const {
    return deals_samples(shards_, options_, static_cast<std::size_t>(lanes));
  }

  void check_identity(const state& from) const {
    state::record mine = identity_;
    mine.front() = list_of(lanes_of_list(from));
    const auto* other = from.find(plan_record);
    if (other != nullptr && *other == mine) return;
    throw failure(error(errc::bad_state,
                        "the saved state belongs to another plan: " + difference(other, mine))
                      .hint("resume with the same shards, index, seed and mode"));
  }

  // The lanes that have begun the epoch of the tail may have dealt samples where neither these
  // lanes nor those that saved the state do: by the same lengths as now.
  void check_lengths(const state& from) const {
    if (tail_.levels.empty()) return;
    const auto* saved = from.find(tail_lengths_record);
    const auto mine = lengths_of_tail();
    // Where there is no record, the list has told, or nothing was dealt.
    const bool fits = saved != nullptr ? mine && *saved == state::record{*mine}
                                       : !mine || deals(lanes_of_list(from));
    if (fits) return;
    throw failure(error(errc::bad_state,
                        "the saved state belongs to another plan: the index differs by which its "
                        "epoch was begun")
                      .hint("resume with the same index"));
  }
  std::optional<std::int64_t> lengths_of_tail() const {
    if (tail_.levels.empty() || !deals(std::ssize(tail_.levels.front()))) return std::nullopt;
    return list_and_lengths_;
  }

  static std::string difference(const state::record* other, const state::record& mine) {
    static constexpr std::array names = {"the list of shards, or the index of it,", "the seed",
                                         "the number of lanes", "the epoch mode",
                                         "the shuffling of shards"};
    for (std::size_t i = 0; other != nullptr && i < names.size() && i < other->size(); ++i) {
      if ((*other)[i] != mine[i]) return std::string(names[i]) + " differs";
    }
    return "it has no record of its plan";
  }

  bool is_past_last() const {
    return options_.mode != epoch_mode::resample &&
           epoch_ >= options_.first_epoch + options_.epochs;
  }

  // What a lane's own stages gave. Until it is asked again, it stands before that.
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
              .hint("a job of several ranks is resumed from the states of all of them"));
    }
    for (const origin& o : from.held(pending_record)) {
      if (o.lane == l.context->lane) l.pending.push_back(o);
    }
    std::ranges::sort(l.pending, {}, &origin::place);
    l.failed_pending = std::min(failed_in(from, l.context->lane), l.pending.size());
    l.given -= static_cast<std::int64_t>(l.failed_pending);
  }

  // Older versions let lanes come to an end after the last epoch as well: one of more epochs than
  // those had would have been over before it began.
  static bool was_past_last(const lane_record& l, const std::vector<lane_record>& saved,
                            const state& from) {
    return from.find(ends_past_record) != nullptr && l.given == 0 &&
           l.epoch == std::ranges::max(saved, {}, &lane_record::epoch).epoch;
  }

  // Nothing: the stages that failed with it leave it out now.
  awaitable<std::optional<outcome>> take_pending(lane& l) {
    if (!l.again) {
      l.again = std::make_unique<again_reader>(*l.context, l.context->sample_stages.size());
    }
    // One at a time, whatever their number: they need no more memory than samples that are read on.
    const bool is_given = l.is_given_next();
    const std::int64_t position = l.next_place().second;
    auto fetched = co_await l.again->take(l.pending.front(), !is_given);
    // A state saved meanwhile must know of it, and so must one that is saved after an error.
    if (!fetched) {
      failed_pending_ = &l - lanes_.data();
      co_return outcome(is_given ? fetched.error() : failed_with(l, fetched.error()));
    }
    leave_pending(l);
    if (!*fetched) co_return std::nullopt;
    if (!is_given) {
      (*fetched)->where.position = position;
      ++l.given;
    }
    any_this_epoch_ = true;
    co_return outcome(std::move(*fetched));
  }

  static void leave_pending(lane& l) {
    if (!l.is_given_next()) --l.failed_pending;
    l.pending.erase(l.pending.begin());
    if (l.pending.empty()) l.again.reset();  // the stages in front may read again themselves
  }

  // What the index says of a lane's epoch beyond what came of it: the rest of broken shards. It is
  // not known where other lanes began the epoch, or where stages in front leave samples out.
  void count_lost(const lane& l) {
    const lane_context& lane = *l.context;
    const bool is_known = options_.index && options_.mode != epoch_mode::resample &&
                          l.epoch < options_.first_epoch + options_.epochs &&
                          lane.sample_stages.empty() &&
                          (tail_.levels.empty() || tail_.epoch != l.epoch);
    if (!is_known) return;
    std::int64_t expected = 0;
    for (const shard_ref& ref : epoch_order(*lane.shards, options_, l.epoch).lane(lane.lane)) {
      const auto shard = static_cast<std::size_t>(ref.shard);
      expected += ref.samples >= 0 ? ref.samples : options_.index->shards[shard].samples;
    }
    const std::int64_t lost = expected - l.given - l.failed;
    if (lost > 0) {
      lane.run.counts.lost += static_cast<std::uint64_t>(lost);
      lost_ += lost;
    } else {
      surplus_ -= lost;
    }
  }

  void tell_losses(std::int64_t epoch) {
    const auto lost = std::exchange(lost_, 0);
    const auto surplus = std::exchange(surplus_, 0);
    if (lost > 0) {
      log_notice(fmt::format(
          "epoch {}: lost with broken shards: {} of the index; the list of skipped samples "
          "names the shards",
          epoch, counted(static_cast<std::uint64_t>(lost), "sample")));
    }
    if (surplus > 0) {
      log_notice(fmt::format(
          "epoch {}: {} more than the index says; `millrace index create` writes a new one", epoch,
          counted(static_cast<std::uint64_t>(surplus), "sample")));
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
    // A state saved after it is before it.
    if (empty && !any_ever_) return no_samples();
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

  // Others may have some.
  std::string of_this_rank() const { return options_.world_size > 1 ? " of this rank" : ""; }

  // `what` of the shards of this rank, whose number is told; at the first of them.
  error of_shards(errc kind, std::string_view what) const {
    std::size_t all = 0;
    const std::string* first = nullptr;
    for (const lane& l : lanes_) {
      if (!l.context->shards) continue;  // of a mix
      for (const shard_ref& ref :
           epoch_order(*l.context->shards, options_, options_.first_epoch).lane(l.context->lane)) {
        if (all++ == 0) first = &(*l.context->shards)[static_cast<std::size_t>(ref.shard)];
      }
    }
    if (first == nullptr) return {kind, fmt::format("{} the shards{}", what, of_this_rank())};
    if (all == 1) return error(kind, fmt::format("{} the shard", what)).at(*first);
    return error(kind, fmt::format("{} the {} shards{}, of which the first is named here", what,
                                   all, of_this_rank()))
        .at(*first);
  }

  // Where shards failed, the reason is theirs.
  error no_samples() const {
    std::int64_t failed = 0;
    for (const lane& l : lanes_) failed += l.failed;
    if (!first_failure_ && failed > 0) {
      return of_shards(errc::no_samples,
                       fmt::format("there were {} before the state was saved, and no sample is in",
                                   counted(static_cast<std::uint64_t>(failed), "error")))
          .hint("begin the epoch again, without the state");
    }
    const bool any_read = std::ranges::any_of(lanes_, [](const lane& l) {
      const auto has_items = [](const auto& part) { return part.lane->drawn->items > 0; };
      return l.context->drawn->items > 0 || std::ranges::any_of(l.context->parts, has_items);
    });
    if (!first_failure_ && any_read) {
      return of_shards(errc::no_samples, "the stages of the lanes left out every sample of")
          .hint("check what they select");
    }
    if (!first_failure_) {
      return of_shards(errc::no_samples, "no sample is in")
          .hint(
              "check that members are named KEY.EXTENSION, that no function deselects them or "
              "their shards, and that there are shards for every rank");
    }
    error none = of_shards(
        first_failure_->kind(),
        fmt::format("the first error is '{}', and no sample came from", first_failure_->message()));
    return none.where().empty() ? none.at(first_failure_->where()) : none;
  }

  std::vector<lane> lanes_;
  std::vector<lane_dealer> records_;  // of the lanes' stages
  shard_list_options options_;
  std::size_t shards_;
  std::int64_t list_ = 0;                         // a fingerprint
  std::optional<std::int64_t> list_and_lengths_;  // where there is an index
  state::record identity_;
  epoch_tail tail_;
  std::int64_t epoch_;          // that is being given; lanes of a restored state may be ahead
  std::int64_t ends_past_ = 0;  // given after that of the last epoch: no epoch ended there
  bool any_this_epoch_ = false;
  bool any_ever_ = false;
  std::optional<error> first_failure_;
  // The lane whose error, of its stages or of a sample read again, was given in the last call.
  std::optional<std::ptrdiff_t> failed_;
  std::optional<std::ptrdiff_t> failed_pending_;
  // Of the epoch, over all lanes: against the index.
  std::int64_t lost_ = 0;
  std::int64_t surplus_ = 0;
};

// Where lengths are known, that each rank has a batch at all.
void check_batches(const run_context& run, const shard_list_options& o, std::size_t lanes,
                   std::size_t lanes_here) {
  if (!o.index || o.mode == epoch_mode::resample || !run.drops_last) return;
  const std::int64_t here =
      o.index->samples() / static_cast<std::int64_t>(lanes) * static_cast<std::int64_t>(lanes_here);
  if (here >= run.batch_size) return;
  throw failure(
      error(
          errc::usage,
          fmt::format("a batch of {} is more than this rank's part of {}, about {}", run.batch_size,
                      counted(static_cast<std::uint64_t>(o.index->samples()), "sample"), here))
          .hint("use smaller batches or fewer ranks, or keep the last batch"));
}

std::unique_ptr<stream<sample>> make_lanes(run_context& run, const lane_plan<sample>& plan) {
  const shard_list_options& o = *plan.options;
  const auto count = static_cast<std::size_t>(o.lane_count());
  run.rank = o.rank;
  run.world_size = o.world_size;
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
    throw failure(
        error(errc::usage, fmt::format("none of {} lanes belongs to rank {}", count, o.rank)));
  }
  run.lanes.assign(mine.begin(), mine.end());
  run.lanes_in_all = static_cast<std::int64_t>(count);
  check_batches(run, o, count, mine.size());
  for (const std::size_t l : mine) {
    lane made;
    made.context = std::make_unique<lane_context>(lane_context{.run = run,
                                                               .lane = static_cast<std::int64_t>(l),
                                                               .lanes = count,
                                                               .lanes_here = mine.size()});
    made.epoch = o.first_epoch;
    made.samples = plan.make(*made.context);
    if (made.context->drawn->is_endless()) run.drawn->of_parts.push_back(made.context->drawn);
    lanes.push_back(std::move(made));
  }
  return std::make_unique<lanes_stream>(std::move(lanes), o, *plan.shards, plan.records);
}

}  // namespace

plan<sample> interleaved(lane_plan<sample> lanes) {
  detail::check_not_empty(lanes.make && lanes.shards && lanes.options);
  return {[lanes = std::move(lanes)](run_context& run) {
    return detail::measured(run, "lanes", make_lanes(run, lanes));
  }};
}

}  // namespace millrace
