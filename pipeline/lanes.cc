#include "pipeline/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "engine/log.h"
#include "pipeline/fetch.h"
#include "pipeline/redeal.h"

namespace millrace {
namespace {

constexpr std::size_t chunk_read_again = 256_KiB;

struct lane {
  std::unique_ptr<lane_context> context;
  std::unique_ptr<stream<sample>> samples;
  std::int64_t epoch = 0;
  std::int64_t base = 0;    // positions before it were given out by other lanes
  std::int64_t given = 0;   // samples of this epoch, pending ones not counted twice
  std::int64_t failed = 0;  // errors of this epoch
  bool ended = false;       // through with this epoch
  std::vector<origin> to_fetch;
  std::deque<sample> pending;  // given out before the state was saved, but not delivered

  std::int64_t next_position() const {
    return base + given * static_cast<std::int64_t>(context->lanes) + context->lane;
  }
  std::pair<std::int64_t, std::int64_t> next_place() const {
    if (!to_fetch.empty()) return to_fetch.front().place();
    if (!pending.empty()) return pending.front().where.place();
    return {epoch, next_position()};
  }
  bool has_pending() const { return !to_fetch.empty() || !pending.empty(); }
  bool done() const { return ended && !has_pending(); }
};

class lanes_stream final : public stream<sample> {
 public:
  lanes_stream(std::vector<lane> lanes, const shard_list_options& options,
               const std::vector<std::string>& shards)
      : lanes_(std::move(lanes)), options_(options), epoch_(options.first_epoch) {
    std::uint64_t list = fingerprint("");
    for (const std::string& url : shards) list = fingerprint(url + "\n", list);
    // Lengths decide the order only where samples are dealt.
    if (deals_samples(shards.size(), options)) {
      for (const auto& s : options.index->shards)
        list = fingerprint(fmt::format("{} ", s.samples), list);
    }
    identity_ = {static_cast<std::int64_t>(list), static_cast<std::int64_t>(options.seed),
                 options.lane_count(), static_cast<std::int64_t>(options.mode),
                 options.shuffle ? 1 : 0};
  }

  awaitable<outcome> next() override {
    for (;;) {
      lane* turn = nullptr;
      for (lane& l : lanes_) {
        const bool has_next = !l.done() && l.next_place().first <= epoch_;
        if (has_next && (turn == nullptr || l.next_place() < turn->next_place())) turn = &l;
      }
      if (turn == nullptr) co_return end_of_epoch();
      if (turn->has_pending()) co_return co_await take_pending(*turn);
      auto next = co_await turn->samples->next();
      if (!next) {
        ++turn->failed;
        co_return next.error();
      }
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

  void save(state& to) const override {
    to.put(plan_record, identity_);
    std::vector<lane_record> records;
    for (const lane& l : lanes_) {
      l.samples->save(to);
      records.push_back({l.context->lane, l.epoch, l.given, l.ended, l.failed});
      to.hold(pending_record, l.to_fetch);
      for (const sample& s : l.pending) to.hold(pending_record, {&s.where, 1});
    }
    put_lane_records(to, records);
    to.put(base_record, {std::ranges::max_element(lanes_, {}, &lane::base)->base});
    const auto in_tail = [&](const lane& l) { return l.epoch == tail_.epoch; };
    if (std::ranges::any_of(lanes_, in_tail)) put_tail(to, tail_);
    to.put(epoch_record, {epoch_});
  }

  void restore(const state& saved_by) override {
    const auto* identity = saved_by.find(plan_record);
    const bool other_lanes = identity != nullptr && identity->size() == identity_.size() &&
                             (*identity)[plan_record_lanes] != identity_[plan_record_lanes];
    const state from = other_lanes ? redealt(saved_by, identity_[plan_record_lanes]) : saved_by;
    identity = from.find(plan_record);
    if (identity == nullptr || *identity != identity_) {
      throw failure(
          error(errc::bad_state, "the saved state belongs to another plan: " + difference(identity))
              .hint("resume with the same shards, seed and mode"));
    }
    epoch_ = consumers_epoch(from);
    const auto saved = lane_records(from);
    tail_ = tail_in(from);
    any_ever_ = epoch_ > options_.first_epoch || !tail_.levels.empty() ||
                std::ranges::any_of(saved, [](const lane_record& l) { return l.given > 0; });
    for (lane& l : lanes_) {
      restore_lane(l, saved, from.held(pending_record));
      l.base = l.epoch == epoch_ ? position_base(from) : 0;
      l.samples->restore(from);
    }
  }

 private:
  std::string difference(const state::record* other) const {
    static constexpr std::array names = {"the list of shards", "the seed", "the number of lanes",
                                         "the epoch mode", "the shuffling of shards"};
    for (std::size_t i = 0; other != nullptr && i < names.size() && i < other->size(); ++i) {
      if ((*other)[i] != identity_[i]) return std::string(names[i]) + " differs";
    }
    return "it has no record of its plan";
  }

  static void restore_lane(lane& l, const std::vector<lane_record>& saved,
                           const std::vector<origin>& pending) {
    const auto mine = std::ranges::find(saved, l.context->lane, &lane_record::lane);
    if (mine != saved.end()) {
      l.epoch = mine->epoch;
      l.given = mine->given;
      l.ended = mine->ended;
      l.failed = mine->failed;
    } else {
      throw failure(
          error(errc::bad_state, fmt::format("the saved state has no lane {}", l.context->lane))
              .hint("a job of several ranks is resumed from the states of all of them"));
    }
    for (const origin& o : pending) {
      if (o.lane == l.context->lane) l.to_fetch.push_back(o);
    }
    std::ranges::sort(l.to_fetch, {}, &origin::place);
  }

  awaitable<outcome> take_pending(lane& l) {
    if (l.pending.empty()) {
      auto fetched =
          co_await fetch_samples(*l.context, nullptr, l.to_fetch, l.context->sample_stages.size());
      if (!fetched) co_return fetched.error();
      l.to_fetch.clear();
      std::ranges::move(*fetched, std::back_inserter(l.pending));
    }
    any_this_epoch_ = true;
    std::optional<sample> out(std::move(l.pending.front()));
    l.pending.pop_front();
    co_return out;
  }

  // What the index says of a lane's epoch beyond what came of it: the rest of broken shards. It is
  // not known where other lanes began the epoch, or where stages in front leave samples out.
  void count_lost(const lane& l) {
    const lane_context& lane = *l.context;
    const bool is_known = options_.index && options_.mode != epoch_mode::resample &&
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
      log_notice(
          fmt::format("epoch {}, lane {}: {} samples of the index are lost with shards that "
                      "are broken; what was skipped says which",
                      l.epoch, lane.lane, lost));
    } else if (lost < 0) {
      log_notice(
          fmt::format("epoch {}, lane {}: {} samples more than the index says; `millrace "
                      "index create` makes it anew",
                      l.epoch, lane.lane, -lost));
    }
  }

  outcome end_of_epoch() {
    const bool last_epoch =
        options_.mode != epoch_mode::resample && epoch_ >= options_.first_epoch + options_.epochs;
    if (last_epoch) return std::optional<sample>();
    const bool empty =
        !std::exchange(any_this_epoch_, false) && std::ranges::all_of(lanes_, [&](const lane& l) {
          return l.epoch == epoch_ && l.given == 0;
        });
    ++epoch_;
    for (lane& l : lanes_) {
      if (l.epoch >= epoch_) continue;  // had begun it before the state was saved
      ++l.epoch;
      l.base = 0;
      l.given = 0;
      l.failed = 0;
      l.ended = false;
    }
    if (empty && !any_ever_) {
      return error(errc::no_samples, "the shards of this rank hold no sample")
          .hint(
              "check that members are named KEY.EXTENSION, and that there are shards for every "
              "rank");
    }
    any_ever_ = any_ever_ || !empty;
    return std::optional<sample>();
  }

  std::vector<lane> lanes_;
  shard_list_options options_;
  state::record identity_;
  epoch_tail tail_;
  std::int64_t epoch_;  // that is being given; lanes of a restored state may be ahead
  bool any_this_epoch_ = false;
  bool any_ever_ = false;
};

// Where lengths are known, that each rank has a batch at all.
void check_batches(const run_context& run, const shard_list_options& o, std::size_t lanes,
                   std::size_t lanes_here) {
  if (!o.index || o.mode == epoch_mode::resample || !run.drops_last) return;
  const std::int64_t here =
      o.index->samples() / static_cast<std::int64_t>(lanes) * static_cast<std::int64_t>(lanes_here);
  if (here >= run.batch_size) return;
  throw failure(
      error(errc::usage, fmt::format("{} samples are about {} for this rank, and a batch is {}: "
                                     "there would be none",
                                     o.index->samples(), here, run.batch_size))
          .hint("take smaller batches, fewer ranks, or keep the last batch"));
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
    throw failure(error(errc::usage, fmt::format("no lane of {} is rank {}'s", count, o.rank)));
  }
  run.lanes.assign(mine.begin(), mine.end());
  check_batches(run, o, count, mine.size());
  for (const std::size_t l : mine) {
    lane made;
    made.context = std::make_unique<lane_context>(lane_context{.run = run,
                                                               .lane = static_cast<std::int64_t>(l),
                                                               .lanes = count,
                                                               .lanes_here = mine.size()});
    made.epoch = o.first_epoch;
    made.samples = plan.make(*made.context);
    lanes.push_back(std::move(made));
  }
  return std::make_unique<lanes_stream>(std::move(lanes), o, *plan.shards);
}

}  // namespace

std::vector<lane_record> lane_records(const state& from) {
  constexpr std::size_t fields = 5;
  std::vector<lane_record> out;
  const auto* r = from.find(lanes_record);
  for (std::size_t i = 0; r != nullptr && i + fields <= r->size(); i += fields) {
    out.push_back({(*r)[i], (*r)[i + 1], (*r)[i + 2], (*r)[i + 3] != 0, (*r)[i + 4]});
  }
  return out;
}

void put_lane_records(state& to, const std::vector<lane_record>& lanes) {
  state::record r;
  for (const lane_record& l : lanes) {
    r.insert(r.end(), {l.lane, l.epoch, l.given, l.ended ? 1 : 0, l.failed});
  }
  to.append(lanes_record, r);
}

std::int64_t consumers_epoch(const state& from) {
  const auto* epoch = from.find(epoch_record);
  if (epoch == nullptr || epoch->size() != 1) {
    throw failure(error(errc::bad_state, "the saved state does not say which epoch it is in"));
  }
  const auto* owed = from.find(end_owed_record);
  return epoch->front() - (owed != nullptr ? std::ssize(*owed) : 0);
}

std::int64_t position_base(const state& from) {
  const auto* r = from.find(base_record);
  return r == nullptr || r->empty() ? 0 : r->front();
}

plan<sample> interleaved(lane_plan<sample> lanes) {
  return {[lanes = std::move(lanes)](run_context& run) {
    return detail::measured(run, "lanes", make_lanes(run, lanes));
  }};
}

}  // namespace millrace
