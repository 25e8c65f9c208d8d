#include "pipeline/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "engine/log.h"
#include "engine/read_blocks.h"
#include "pipeline/fetch.h"

namespace millrace {
namespace {

constexpr std::size_t least_member_memory = 4_MiB;
constexpr std::size_t most_member_memory = 16_MiB;

struct lane {
  std::unique_ptr<lane_context> context;
  std::unique_ptr<stream<sample>> samples;
  std::int64_t epoch = 0;
  std::int64_t given = 0;  // samples of this epoch, pending ones not counted twice
  bool ended = false;      // through with this epoch
  std::vector<origin> to_fetch;
  std::deque<sample> pending;  // given out before the state was saved, but not delivered

  std::int64_t next_position() const {
    if (!to_fetch.empty()) return to_fetch.front().position;
    if (!pending.empty()) return pending.front().where.position;
    return given * static_cast<std::int64_t>(context->lanes) + context->lane;
  }
  bool has_pending() const { return !to_fetch.empty() || !pending.empty(); }
  bool done() const { return ended && !has_pending(); }
};

class lanes_stream final : public stream<sample> {
 public:
  lanes_stream(std::vector<lane> lanes, const shard_list_options& options,
               const std::vector<std::string>& shards)
      : lanes_(std::move(lanes)), options_(options) {
    std::uint64_t list = fingerprint("");
    for (const std::string& url : shards) list = fingerprint(url + "\n", list);
    identity_ = {static_cast<std::int64_t>(list), static_cast<std::int64_t>(options.seed),
                 options.lane_count(), static_cast<std::int64_t>(options.mode),
                 options.shuffle ? 1 : 0};
  }

  awaitable<outcome> next() override {
    for (;;) {
      lane* turn = nullptr;
      for (lane& l : lanes_) {
        const bool has_next = owes_end_ ? l.has_pending() : !l.done();
        if (has_next && (turn == nullptr || l.next_position() < turn->next_position())) turn = &l;
      }
      if (turn == nullptr && std::exchange(owes_end_, false)) co_return std::optional<sample>();
      if (turn == nullptr) co_return end_of_epoch();
      if (turn->has_pending()) co_return co_await take_pending(*turn);
      auto next = co_await turn->samples->next();
      if (!next) co_return next.error();
      if (!*next) {
        turn->ended = true;
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
    to.put("plan", identity_);
    state::record r;
    for (const lane& l : lanes_) {
      l.samples->save(to);
      r.insert(r.end(), {l.context->lane, l.epoch, l.given, l.ended ? 1 : 0});
      state::record held;
      for (const origin& o : l.to_fetch) append_origin(held, o);
      for (const sample& s : l.pending) append_origin(held, s.where);
      to.append(pending_record, held);
    }
    to.append("lanes", r);
    if (owes_end_) to.put(end_owed_record, {1});
  }

  void restore(const state& from) override {
    const auto* identity = from.find("plan");
    if (identity == nullptr || *identity != identity_) {
      throw failure(
          error(errc::bad_state, "the saved state belongs to another plan: " + difference(identity))
              .hint("resume with the same shards, seed and lanes"));
    }
    owes_end_ = from.find(end_owed_record) != nullptr;
    const auto* saved = from.find("lanes");
    const auto* held = from.find(pending_record);
    const auto pending =
        origins_in(held != nullptr ? std::span(*held) : std::span<const std::int64_t>());
    for (lane& l : lanes_) {
      restore_lane(l, saved, pending.value());
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

  static void restore_lane(lane& l, const state::record* saved,
                           const std::vector<origin>& pending) {
    constexpr std::size_t fields = 4;
    bool found = false;
    for (std::size_t i = 0; saved != nullptr && i + fields <= saved->size(); i += fields) {
      if ((*saved)[i] != l.context->lane) continue;
      l.epoch = (*saved)[i + 1];
      l.given = (*saved)[i + 2];
      l.ended = (*saved)[i + 3] != 0;
      found = true;
    }
    if (!found) {
      throw failure(
          error(errc::bad_state, fmt::format("the saved state has no lane {}", l.context->lane))
              .hint("a job of several ranks is resumed from the states of all of them"));
    }
    for (const origin& o : pending) {
      if (o.lane == l.context->lane) l.to_fetch.push_back(o);
    }
    std::ranges::sort(l.to_fetch, {}, &origin::position);
  }

  awaitable<outcome> take_pending(lane& l) {
    if (l.pending.empty()) {
      auto fetched = co_await fetch_samples(*l.context, l.context->members, l.to_fetch);
      if (!fetched) co_return fetched.error();
      l.to_fetch.clear();
      std::ranges::move(*fetched, std::back_inserter(l.pending));
    }
    any_this_epoch_ = true;
    std::optional<sample> out(std::move(l.pending.front()));
    l.pending.pop_front();
    co_return out;
  }

  outcome end_of_epoch() {
    const bool last_epoch = options_.mode == epoch_mode::exact &&
                            lanes_.front().epoch >= options_.first_epoch + options_.epochs;
    if (last_epoch) return std::optional<sample>();
    const bool empty = !std::exchange(any_this_epoch_, false) &&
                       std::ranges::all_of(lanes_, [](const lane& l) { return l.given == 0; });
    for (lane& l : lanes_) {
      ++l.epoch;
      l.given = 0;
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
  bool owes_end_ = false;  // what is pending belongs to the epoch before
  bool any_this_epoch_ = false;
  bool any_ever_ = false;
};

std::unique_ptr<stream<sample>> make_lanes(run_context& run, const lane_plan<sample>& plan) {
  const shard_list_options& o = *plan.options;
  const auto count = static_cast<std::size_t>(o.lane_count());
  // A lane without shards of its own has nothing to read and needs no memory.
  const std::size_t used =
      o.mode == epoch_mode::exact ? std::min(count, plan.shards->size()) : count;
  run.source.working_set_bytes = working_set_of(*plan.shards);
  run.source.quick_start = true;
  const source_memory need = memory_for(run.source, plan.shards->front());
  std::vector<lane> lanes;
  const auto world = static_cast<std::size_t>(o.world_size);
  const std::size_t here = count / world;
  for (auto l = static_cast<std::size_t>(o.rank); l < count; l += world) {
    lane made;
    const std::string name = fmt::format("lane {}", l);
    const bool has_shards = l < used;
    made.context = std::make_unique<lane_context>(lane_context{
        .run = run,
        .lane = static_cast<std::int64_t>(l),
        .lanes = count,
        .lanes_here = here,
        .shards = plan.shards,
        .reads = run.memory.share(name + " reads", has_shards ? need.least : 0,
                                  has_shards ? need.most : 0, read_block_allocator::instance()),
        .members = run.memory.share(name + " members", has_shards ? least_member_memory : 0,
                                    has_shards ? most_member_memory : 0)});
    made.epoch = o.first_epoch;
    made.samples = plan.make(*made.context);
    lanes.push_back(std::move(made));
  }
  run.memory.when_divided([&run, first = plan.shards->front(), reads = lanes.front().context->reads,
                           open = std::min(here, used)] {
    const auto lost = rate_lost(run.source, first, reads->limit(), open, run.memory.budget());
    if (lost) log_notice(*lost);
  });
  return std::make_unique<lanes_stream>(std::move(lanes), o, *plan.shards);
}

}  // namespace

plan<sample> interleaved(lane_plan<sample> lanes) {
  return {[lanes = std::move(lanes)](run_context& run) {
    return detail::measured(run, "lanes", make_lanes(run, lanes));
  }};
}

}  // namespace millrace
