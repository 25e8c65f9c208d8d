#include "pipeline/state/merged.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "pipeline/state/lane_names.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

// The last part of the name of a lane's record; empty for other records.
std::string_view record_of_lane(std::string_view name) {
  const std::string_view record = split_lane_name(name).second;
  return record.substr(record.rfind('/') + 1);
}

// If the states of one rank are given twice, its samples would be read twice.
void check_no_lane_twice(const state& whole) {
  auto lanes = lane_records(whole);
  std::ranges::sort(lanes, {}, &lane_record::lane);
  const auto twice = std::ranges::adjacent_find(lanes, {}, &lane_record::lane);
  if (twice == lanes.end()) return;
  throw failure(error(errc::bad_state, fmt::format("two of the states have lane {}", twice->lane))
                    .hint("give the state of every rank once, all of one step"));
}

// All ranks continue in the earliest epoch. A rank that is ahead has no samples left in it and
// yields its end again; adds these ends to the counts of the stages that count ends.
void count_ends_again(state& whole, std::span<const state> of_ranks) {
  const auto* first = whole.find(epoch_record);
  for (const state& s : of_ranks) {
    const auto counted = std::ranges::find_if(s.records(), [](const auto& r) {
      return r.first.find(of_rank_begin) != std::string::npos;
    });
    if (first == nullptr || counted == s.records().end()) continue;
    const std::string name =
        ends_held_record + counted->first.substr(counted->first.rfind(of_rank_begin));
    const auto* held = s.find(name);
    state::record ends = held != nullptr ? *held : ends_held_in(s);
    ends.front() += consumers_epoch(s) - first->front();
    whole.put(name, std::move(ends));
  }
}

// A record of a stage of the program's own without its rank in its name would be that of one rank.
void check_same_of_ranks(const state& merged, const std::string& name,
                         const state::record& values) {
  const auto* other = merged.find(name);
  if (other == nullptr || *other == values) return;
  if (is_of_position(name) || is_name_of_lanes(name)) return;
  throw failure(
      error(errc::bad_state, fmt::format("the ranks' states have different records {}, of a stage "
                                         "of the program",
                                         name))
          .hint("have the stage save it as its name and of_rank(rank, world size), or resume each "
                "rank from its own state"));
}

}  // namespace

state merged(std::span<const state> of_ranks) {
  state out;
  for (const state& s : of_ranks) {
    check_numbers(s);
    const auto* plan = s.find(plan_record::name);
    const auto* known = out.find(plan_record::name);
    if (plan == nullptr || (known != nullptr && *known != *plan)) {
      throw failure(error(errc::bad_state, "the states of the ranks are of different plans"));
    }
    for (const auto& [name, values] : s.records()) {
      if (name == lanes_record || name == failed_record) {
        out.append(name, values);
      } else if (name == epoch_record) {
        const std::int64_t epoch = consumers_epoch(s);
        const auto* other = out.find(name);
        out.put(name, {other == nullptr ? epoch : std::min(epoch, other->front())});
      } else if (name == base_record) {
        // A rank that is ahead has no base.
        out.put(name, {std::max(position_base(out), position_base(s))});
      } else if (name == end_owed_record || name == own_ends_record || name == consumers_record) {
        continue;
      } else {
        check_same_of_ranks(out, name, values);
        out.put(name, values);
      }
    }
    for (const auto& [name, samples] : s.all_held()) out.hold(name, samples);
    for (const lane_record& l : lane_records(s)) {
      const std::int64_t before = consumer_of(s, l.lane).value_or(consumers_epoch(s));
      const std::int64_t consumer = std::max(before, consumers_epoch(s));
      out.append(consumers_record, std::array{l.lane, consumer});
    }
  }
  check_no_lane_twice(out);
  count_ends_again(out, of_ranks);
  return out;
}

std::uint64_t plan_fingerprint(const state& of) {
  const auto* plan = of.find(plan_record::name);
  if (plan == nullptr) {
    throw failure(
        error(errc::bad_state, "the state has no plan").hint("give one of loader::save()"));
  }
  std::uint64_t out = fingerprint("");
  const auto add = [&out](std::int64_t value) {
    out = fingerprint(fmt::format("{} ", value), out);
  };
  for (const std::int64_t value : *plan) add(value);
  // The mixes of every lane are the same, so those of one lane suffice. Nested mixes come after the
  // outer one.
  std::string_view lane;
  for (const auto& [name, values] : of.records()) {
    if (record_of_lane(name) != mix_record || values.empty()) continue;
    const auto its = split_lane_name(name).first;
    if (lane.empty()) lane = its;
    if (its == lane) add(values.front());
  }
  return out;
}

}  // namespace millrace
