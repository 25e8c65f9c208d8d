#include "pipeline/shards/edited_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "pipeline/shards/shards.h"
#include "pipeline/state/lane_names.h"
#include "pipeline/state/merged.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

error not_moved(const std::string& why) {
  return error(errc::unsupported, "the state does not tell how another epoch begins: " + why)
      .hint("start the run without the state, with shard_list_options.first_epoch");
}

// Puts a lane's record as it is before the first sample of `epoch`.
void put_lane_at_begin(state& to, const state& of, const std::string& name, std::int64_t epoch) {
  const std::string_view record = split_lane_name(name).second;
  const lane_record_kind* const kind = kind_of_lane_record(record);
  if (kind != nullptr && kind->put_at_begin != nullptr) {
    return kind->put_at_begin(to, name, of, epoch);
  }
  if (record.ends_with(mix_record) || record.find('/') != record.npos) {
    throw failure(not_moved("the sources of a mix continue across its epochs"));
  }
  throw failure(not_moved(fmt::format("a stage of the program has the record {}", name)));
}

// The same for a record of a stage after the lanes.
void put_stage_at_begin(state& to, const std::string& name, const state::record& values) {
  const rank_record_kind* const kind = kind_of_rank_record(name);
  if (kind != nullptr && kind->put_at_begin != nullptr) return kind->put_at_begin(to, name, values);
  if (kind != nullptr || name.starts_with(own_ends_record)) {
    throw failure(not_moved("epochs_of() and repeated() make epochs of their own"));
  }
  throw failure(not_moved(fmt::format("a stage of the program has the record {}", name)));
}

plan_record plan_in(const state& of) {
  if (const auto plan = plan_record::in(of)) return *plan;
  throw failure(error(errc::bad_state, "the state has no plan")
                    .hint("take a state that loader::save() has made"));
}

// The positions in the epoch at which the next samples of all ranks are.
class next_positions {
 public:
  next_positions(const state& whole, std::int64_t epoch) {
    const auto all = lane_records(whole);
    lanes_ = plan_in(whole).lanes;
    if (std::ssize(all) != lanes_) {
      throw failure(
          error(errc::bad_state, fmt::format("the state has {} of {} lanes", all.size(), lanes_))
              .hint("give the states of all ranks, merged"));
    }
    const auto before = stretch_record::in(whole);
    if (before && before->epoch == epoch) least_ = before->below;
    for (const lane_record& l : all) {
      if (l.epoch == epoch && !l.ended) add_lane(l, whole);
    }
    add_held(whole, epoch);
  }

  // The number of samples at positions below this one.
  std::int64_t count_below(std::int64_t position) const {
    std::int64_t n = std::ranges::lower_bound(held_, position) - held_.begin();
    for (const std::int64_t first : heads_) {
      if (first < position) n += (position - first - 1) / lanes_ + 1;
    }
    return n;
  }

 private:
  void add_lane(const lane_record& l, const state& whole) {
    const std::int64_t given = l.given - static_cast<std::int64_t>(failed_in(whole, l.lane));
    if (given < 0 || given > (most_counted - l.lane) / lanes_)
      throw failure(senseless(lanes_record));
    std::int64_t next = position_base(whole) + given * lanes_ + l.lane;
    if (next < least_) next += (least_ - next + lanes_ - 1) / lanes_ * lanes_;
    heads_.push_back(next);
  }
  // Samples that lanes failed on take no position, unless they pass now.
  void add_held(const state& whole, std::int64_t epoch) {
    std::vector<origin> held = whole.held(pending_record);
    std::ranges::sort(held, {}, [](const origin& o) { return std::pair(o.lane, o.place()); });
    for (std::size_t i = 0; i < held.size();) {
      std::size_t end = i;
      while (end < held.size() && held[end].lane == held[i].lane) ++end;
      const std::size_t failed = std::min(failed_in(whole, held[i].lane), end - i);
      for (const origin& o : std::span(held).subspan(i, end - i - failed)) {
        if (o.epoch == epoch && o.position >= least_) held_.push_back(o.position);
      }
      i = end;
    }
    std::ranges::sort(held_);
  }

  std::int64_t lanes_ = 1;
  std::int64_t least_ = 0;           // those below it are passed over already
  std::vector<std::int64_t> heads_;  // of each lane that has not ended
  std::vector<std::int64_t> held_;   // of what later stages hold, sorted
};

}  // namespace

state moved_to_epoch(const state& of, std::int64_t epoch) {
  check_numbers(of);
  const plan_record plan = plan_in(of);
  if (epoch < 0 || epoch > most_counted) {
    throw failure(
        error(errc::usage, fmt::format("an epoch {}", epoch)).hint("epochs begin with 0"));
  }
  if (plan.mode == static_cast<int>(epoch_mode::resample)) {
    throw failure(not_moved("shards that are drawn with replacement have one endless epoch"));
  }
  state out;
  plan.put(out);
  if (const auto* lanes = of.find(list_lanes_record)) out.put(list_lanes_record, *lanes);
  for (const auto& [name, values] : of.records()) {
    if (is_of_position(name) && name != own_ends_record) continue;
    if (split_lane_name(name).first.empty()) {
      put_stage_at_begin(out, name, values);
    } else {
      put_lane_at_begin(out, of, name, epoch);
    }
  }
  std::vector<lane_record> lanes = lane_records(of);
  for (lane_record& l : lanes) l = {.lane = l.lane, .epoch = epoch};
  put_lane_records(out, lanes);
  out.put(base_record, {0});
  out.put(epoch_record, {epoch});
  return out;
}

skipping_states skipping(std::span<const state> of_ranks, std::int64_t samples) {
  const state whole = merged(of_ranks);
  if (samples < 1 || samples > most_counted) {
    throw failure(error(errc::usage, fmt::format("{} samples to pass over", samples))
                      .hint("pass over at least one"));
  }
  const std::int64_t epoch = consumers_epoch(whole);
  const next_positions next(whole, epoch);
  // The lowest bound below which there are as many.
  std::int64_t least = 0;
  std::int64_t most = most_counted;
  while (least < most) {
    const std::int64_t middle = least + (most - least) / 2;
    if (next.count_below(middle) >= samples) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  skipping_states out{.epoch = epoch};
  out.samples = std::min(next.count_below(most), samples);
  out.to_the_end = out.samples < samples;
  for (const state& s : of_ranks) {
    state made = s;
    stretch_record{.epoch = epoch, .below = most}.put(made);
    out.of_ranks.push_back(std::move(made));
  }
  return out;
}

}  // namespace millrace
