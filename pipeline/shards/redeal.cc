#include "pipeline/shards/redeal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "pipeline/shards/shards.h"
#include "pipeline/state/lane_names.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

error incomplete(const std::string& what) {
  return error(errc::bad_state, what)
      .hint("resuming with another number of lanes needs the states of all ranks");
}

struct old_lanes {
  std::vector<lane_record> lanes;  // by number
  std::int64_t epoch = 0;
};

// Whether a stage makes epochs of its own (epochs_of, repeated): its consumer may be in a later
// epoch of the data than some of the samples it holds.
bool has_own_epochs(const state& from) {
  return std::ranges::any_of(from.records(), [](const auto& r) {
    return r.first == own_ends_record || r.first.starts_with(ends_held_record);
  });
}

// Whether this lane may have yielded samples of epochs after `epoch` to its consumer, or have
// counted such samples as failed. A lane that is ahead has finished `epoch`, and starts the later
// ones again.
bool is_given_of_later(const state& from, const lane_record& l, std::int64_t epoch) {
  if (l.epoch <= epoch) return false;
  // Nothing is known about the epochs in between, which the lane has finished.
  if (l.epoch > epoch + 1 && has_own_epochs(from)) return true;
  const auto not_given = std::ranges::count_if(from.held(pending_record), [&](const origin& o) {
    return o.lane == l.lane && o.epoch == l.epoch;
  });
  if (l.given > not_given || l.failed > 0) return true;
  // A consumer that is in the next epoch has received nothing of it if this lane yielded nothing of
  // it.
  const std::int64_t ahead = consumer_of(from, l.lane).value_or(epoch) - epoch;
  return ahead > 1 || (ahead == 1 && l.epoch > epoch + 1);
}

old_lanes lanes_in(const state& from) {
  old_lanes out;
  const auto plan = plan_record::in(from);
  if (!plan) throw failure(incomplete("the state has no plan"));
  out.lanes = lane_records(from);
  std::ranges::sort(out.lanes, {}, &lane_record::lane);
  if (plan->lanes < 1) throw failure(senseless(plan_record::name));
  const auto count = static_cast<std::size_t>(plan->lanes);
  const bool complete =
      out.lanes.size() == count && std::ranges::all_of(out.lanes, [&](const lane_record& l) {
        return l.lane == &l - out.lanes.data();
      });
  if (!complete) {
    throw failure(incomplete(fmt::format("the state has {} of {} lanes", out.lanes.size(), count)));
  }
  out.epoch = consumers_epoch(from);
  for (const lane_record& l : out.lanes) {
    if (is_given_of_later(from, l, out.epoch)) {
      throw failure(
          error(errc::bad_state,
                fmt::format("lane {} was in epoch {} while others were in epoch {}", l.lane,
                            l.epoch, out.epoch))
              .hint(fmt::format(
                  "resume with the lanes that it was saved with (shard_list_options.lanes {}), on "
                  "any number of ranks up to that; another number of lanes needs states of one "
                  "epoch",
                  count)));
    }
  }
  return out;
}

// The lane's progress in `epoch`: past its end if the lane already reads the next one.
lane_cursor cursor_of(const state& from, std::int64_t lane, std::int64_t epoch) {
  const auto [at_epoch, at] = cursor_record::in(from, lane_record_name(lane, cursor_record::name));
  if (at_epoch == epoch) {
    lane_cursor out = at;
    out.before = group_record::in(from, lane_record_name(lane, group_record::name)).before;
    return out;
  }
  return {.draw = std::numeric_limits<std::int32_t>::max()};
}

// Refuses records of stages that do not provide a lane_dealer. Checks the records of all lanes:
// some lanes may be past their epoch and lack a record.
void check_can_be_dealt(const state& from, std::span<const lane_dealer> records) {
  const auto check = [&](std::string_view name) {
    const auto record = split_lane_name(name).second;  // with the prefix of a mix's source
    if (record.empty() || record == cursor_record::name) return;
    const auto known = std::ranges::find(records, record, &lane_dealer::record);
    if (known != records.end() && known->deal) return;
    throw failure(
        error(errc::bad_state,
              fmt::format(
                  "the saved state has a record {} of its lanes, which cannot be resumed with "
                  "another number of lanes",
                  record))
            .hint("use the number of lanes that it was saved with; the number of ranks may "
                  "change"));
  };
  for (const auto& [name, values] : from.records()) check(name);
  for (const auto& [name, held] : from.all_held()) check(name);
}

// The samples to pass over are known by their positions, which only those lanes give.
void check_has_no_stretch(const state& from) {
  if (from.find(stretch_record::name) == nullptr) return;
  const std::int64_t lanes = plan_record::in(from).value().lanes;
  throw failure(
      error(errc::bad_state,
            "the saved state passes over samples of its epoch, which another number of lanes would "
            "give in another order")
          .hint(fmt::format(
              "resume with the lanes that it was saved with (shard_list_options.lanes {}), on any "
              "number of ranks up to that, until a state is saved after those samples",
              lanes)));
}

}  // namespace

state redealt(const state& from, std::int64_t lanes, std::span<const lane_dealer> records) {
  const old_lanes old = lanes_in(from);
  check_has_no_stretch(from);
  check_can_be_dealt(from, records);
  state out;
  plan_record plan = plan_record::in(from).value();
  plan.lanes = lanes;
  plan.put(out);
  out.put(list_lanes_record, {lanes_of_list(from)});

  epoch_tail tail = tail_in(from);
  if (tail.epoch != old.epoch) tail = {.epoch = old.epoch, .levels = {}};
  const auto* lengths = from.find(tail_lengths_record);
  if (lengths != nullptr && !tail.levels.empty()) out.put(tail_lengths_record, *lengths);
  std::vector<lane_cursor> level;
  std::int64_t base = 0;  // positions below it have been assigned
  const std::int64_t before = position_base(from);
  for (const lane_record& l : old.lanes) {
    level.push_back(cursor_of(from, l.lane, old.epoch));
    if (l.epoch != old.epoch) continue;
    base = std::max(base, before + l.given * std::ssize(old.lanes) + l.lane);
  }
  const bool begun =
      std::ranges::any_of(old.lanes,
                          [&](const auto& l) { return l.given > 0 && l.epoch == old.epoch; }) ||
      std::ranges::any_of(level, [](const auto& c) { return c.draw + c.offset > 0; });
  // Draws with replacement continue after those made by any lane.
  lane_cursor from_here;
  if (plan.mode == static_cast<int>(epoch_mode::resample)) {
    from_here.draw = std::ranges::max(level, {}, &lane_cursor::draw).draw + 1;
  } else if (begun) {
    tail.levels.push_back(std::move(level));
  }
  put_tail(out, tail);
  out.put(base_record, {begun || before > 0 ? base : 0});

  std::vector<lane_record> made;
  for (std::int64_t l = 0; l < lanes; ++l) {
    made.push_back({.lane = l, .epoch = old.epoch});
    out.put(lane_record_name(l, cursor_record::name), cursor_record::of(old.epoch, from_here));
  }
  put_lane_records(out, made);
  out.put(epoch_record, {old.epoch});
  const dealing what{
      .from = from, .epoch = old.epoch, .lanes_before = std::ssize(old.lanes), .lanes = lanes};
  for (const lane_dealer& r : records) {
    if (!r.deal) continue;
    detail::called_as("distributing the record '" + r.record + "'", [&] { r.deal(what, out); });
  }

  std::vector<origin> pending = from.held(pending_record);
  std::ranges::sort(pending, {}, &origin::place);
  for (const auto& of_lane : dealt(what, std::move(pending))) out.hold(pending_record, of_lane);
  for (const auto& [name, values] : from.records()) {
    const bool is_kept = name == ends_past_record || name.starts_with(ends_held_record);
    const bool of_lanes = is_name_of_lanes(name) || is_of_position(name);
    if (is_kept || !of_lanes) out.put(name, values);
  }
  return out;
}

}  // namespace millrace
