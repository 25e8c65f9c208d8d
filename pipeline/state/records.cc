#include "pipeline/state/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "pipeline/state/count_record.h"
#include "pipeline/state/lane_names.h"
#include "pipeline/state/shard_head.h"
#include "pipeline/state/shuffle_record.h"
#include "pipeline/state/skip_records.h"

namespace millrace {
namespace {

std::int64_t ends_past_in(const state& saved) {
  const auto* past = saved.find(ends_past_record);
  return past != nullptr && !past->empty() ? past->front() : 0;
}

bool is_count(std::int64_t n) {
  return n >= -1 && n <= most_counted;  // -1: none
}
// Offsets in user-defined formats may be any numbers that grow within a shard.
bool is_offset(std::int64_t n) {
  return n >= -1 && n <= std::numeric_limits<std::int64_t>::max() / 2;
}

// A record of the position as a whole.
struct position_record {
  std::string_view name;
  record_numbers numbers = record_numbers::counts;
};
constexpr auto position_records =
    std::to_array<position_record>({{plan_record::name, record_numbers::compared},
                                    {lanes_record},
                                    {base_record},
                                    {epoch_record},
                                    {failed_record},
                                    {consumers_record},
                                    {stretch_record::name},
                                    {list_lanes_record},
                                    {tail_record, record_numbers::offsets},
                                    {tail_seen_record, record_numbers::compared},
                                    {tail_lengths_record, record_numbers::compared},
                                    {end_owed_record},
                                    {ends_past_record},
                                    {own_ends_record},
                                    {ends_held_record}});

const position_record* found_in_position(std::string_view name) {
  const auto* const at = std::ranges::find(position_records, name, &position_record::name);
  return at == position_records.end() ? nullptr : at;
}

// Of stages of lanes.
constexpr auto lane_record_kinds = std::to_array<lane_record_kind>({
    {cursor_record::name, record_numbers::offsets,
     [](state& to, const std::string& id, const state& /*of*/, std::int64_t epoch) {
       to.put(id, cursor_record::of(epoch, {}));
     }},
    {shard_head::record, record_numbers::offsets,
     [](state& /*to*/, const std::string& /*id*/, const state& /*of*/, std::int64_t /*epoch*/) {}},
    {group_record::name, record_numbers::compared,
     [](state& to, const std::string& id, const state& of, std::int64_t /*epoch*/) {
       const auto usual = group_record::in(of, id).before.usual;
       group_record{.before = {.usual = usual}}.put(to, id);
     }},
    {shuffle_record::name, record_numbers::counts,
     [](state& to, const std::string& id, const state& /*of*/, std::int64_t epoch) {
       shuffle_record{.epoch = epoch}.put(to, id);
     }},
    {window_record, record_numbers::counts,
     [](state& to, const std::string& id, const state& /*of*/, std::int64_t /*epoch*/) {
       to.put(id, {within_no_window});
     }},
    {mix_record, record_numbers::counts, nullptr},
});

// Of stages after the lanes.
constexpr auto rank_record_kinds = std::to_array<rank_record_kind>({
    {skipped_record, record_numbers::counts,
     [](state& to, const std::string& name, const state::record& values) { to.put(name, values); }},
    {lost_record, record_numbers::compared,
     [](state& to, const std::string& name, const state::record& /*values*/) {
       to.put(name, lost_shards().of());
     }},
    {slice_record, record_numbers::counts,
     [](state& to, const std::string& name, const state::record& /*values*/) {
       to.put(name, count_record().of());
     }},
    {epochs_of_record, record_numbers::counts, nullptr},
    {repeated_record, record_numbers::counts, nullptr},
});

// Those of stages of their own are compared, if at all.
record_numbers numbers_of(std::string_view name) {
  using enum record_numbers;
  const position_record* const whole = found_in_position(name);
  if (whole != nullptr) return whole->numbers;
  if (const auto of = name.find(of_rank_begin); of != name.npos) {
    if (name.substr(0, of) == ends_held_record) return counts;
    const rank_record_kind* const kind = kind_of_rank_record(name);
    return kind != nullptr ? kind->numbers : compared;
  }
  const auto slash = name.rfind('/');
  if (slash == name.npos) return name == skipped_record ? counts : compared;
  const auto* const kind =
      name.starts_with("lane") ? kind_of_lane_record(name.substr(slash + 1)) : nullptr;
  return kind != nullptr ? kind->numbers : compared;
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
  return epoch->front() -
         std::max<std::int64_t>(ends_held_in(from).front() - ends_past_in(from), 0);
}

std::optional<std::int64_t> consumer_of(const state& from, std::int64_t lane) {
  const auto* r = from.find(consumers_record);
  for (std::size_t i = 0; r != nullptr && i + 1 < r->size(); i += 2) {
    if ((*r)[i] == lane) return (*r)[i + 1];
  }
  return std::nullopt;
}

std::size_t failed_in(const state& from, std::int64_t lane) {
  const auto* r = from.find(failed_record);
  for (std::size_t i = 0; r != nullptr && i + 1 < r->size(); i += 2) {
    if ((*r)[i] == lane) return static_cast<std::size_t>(std::max<std::int64_t>((*r)[i + 1], 0));
  }
  return 0;
}

std::int64_t position_base(const state& from) {
  const auto* r = from.find(base_record);
  return r == nullptr || r->empty() ? 0 : r->front();
}

state::record ends_held_in(const state& saved) {
  const auto* own = saved.find(own_ends_record);
  const auto* owed = saved.find(end_owed_record);
  state::record out = own != nullptr ? *own : state::record();
  out.push_back(owed != nullptr ? std::ssize(*owed) : 0);
  // A stage that yields ends of its own has consumed those of the lanes, and may hold samples from
  // before them. These samples come again after the ends, so the stages in between need the ends
  // again.
  const auto* epoch = saved.find(epoch_record);
  const auto& held = saved.held(pending_record);
  if (own == nullptr || epoch == nullptr || epoch->empty() || held.empty()) return out;
  const std::int64_t first = std::ranges::min_element(held, {}, &origin::epoch)->epoch;
  if (first < epoch->front()) {
    out.front() = std::max(out.front(), epoch->front() - first + ends_past_in(saved));
  }
  return out;
}

std::int64_t lanes_of_list(const state& from) {
  const auto* dealt = from.find(list_lanes_record);
  if (dealt != nullptr && !dealt->empty()) return dealt->front();
  const auto plan = plan_record::in(from);
  return plan ? plan->lanes : 0;
}

std::optional<plan_record> plan_record::in(const state& from) {
  const auto* r = from.find(name);
  if (r == nullptr || r->size() != 5) return std::nullopt;
  return plan_record{.list = (*r)[0],
                     .seed = (*r)[1],
                     .lanes = (*r)[2],
                     .mode = (*r)[3],
                     .is_shuffled = (*r)[4] != 0};
}

std::optional<stretch_record> stretch_record::in(const state& from) {
  const auto* r = from.find(name);
  if (r == nullptr) return std::nullopt;
  if (r->size() != 2) throw failure(senseless(name));
  return stretch_record{.epoch = (*r)[0], .below = (*r)[1]};
}

error senseless(std::string_view record) {
  return error(errc::bad_state,
               fmt::format("the saved state's record of {} makes no sense", record))
      .hint("resume from another checkpoint");
}

const lane_record_kind* kind_of_lane_record(std::string_view name) {
  const auto* const at = std::ranges::find(lane_record_kinds, name, &lane_record_kind::name);
  return at == lane_record_kinds.end() ? nullptr : at;
}

const rank_record_kind* kind_of_rank_record(std::string_view name) {
  name = name.substr(0, name.find(of_rank_begin));
  name = name.substr(0, name.find_last_not_of(" 0123456789") + 1);
  const auto* const at = std::ranges::find(rank_record_kinds, name, &rank_record_kind::name);
  return at == rank_record_kinds.end() ? nullptr : at;
}

void check_records_apart(const std::vector<lane_dealer>& front,
                         const std::vector<lane_dealer>& back, const std::string& stage) {
  for (const lane_dealer& record : back) {
    const bool is_taken =
        record.record == cursor_record::name ||
        std::ranges::find(front, record.record, &lane_dealer::record) != front.end();
    if (!is_taken) continue;
    throw failure(error(errc::usage, fmt::format("the stage '{}' saves the record '{}', and so "
                                                 "does a stage before it",
                                                 stage, record.record))
                      .hint("give each stage's record a name of its own in lane_stage::records and "
                            "in save()"));
  }
}

bool is_of_position(std::string_view name) {
  return found_in_position(name.substr(0, name.find(of_rank_begin))) != nullptr;
}

void check_numbers(const state& from) {
  for (const auto& [name, values] : from.records()) {
    const record_numbers numbers = numbers_of(name);
    if (numbers == record_numbers::compared) continue;
    // The first number of a mix is a fingerprint.
    const std::size_t first = name.ends_with(mix_record) ? 1 : 0;
    const auto counts = std::span(values).subspan(std::min(first, values.size()));
    const bool has_offsets = numbers == record_numbers::offsets;
    if (name.starts_with(ends_held_record) && values.empty()) throw failure(senseless(name));
    if (!std::ranges::all_of(counts, has_offsets ? is_offset : is_count)) {
      throw failure(senseless(name));
    }
  }
  for (const auto& [name, samples] : from.all_held()) {
    const bool makes_sense = std::ranges::all_of(samples, [](const origin& o) {
      return is_count(o.lane) && is_count(o.shard) && is_offset(o.offset) && is_count(o.epoch) &&
             is_count(o.position);
    });
    if (!makes_sense) throw failure(senseless(name));
  }
}

std::string of_rank(int rank, int world_size) {
  return fmt::format(" of rank {} of {}", rank, world_size);
}

std::pair<std::int64_t, lane_cursor> cursor_record::in(const state& from, const std::string& name) {
  const auto* r = from.find(name);
  if (r == nullptr || r->size() != 4) {
    throw failure(error(errc::bad_state, "the saved state has no record " + name)
                      .hint("it was saved by a plan with other lanes"));
  }
  return {(*r)[0], {.draw = (*r)[1], .offset = (*r)[2], .given = (*r)[3]}};
}

void cursor_record::put_restored(state& to, const std::string& name, const lane_cursor& start) {
  if (start.offset == 0) return;
  const auto [epoch, next] = in(to, name);
  to.put(name, of(epoch, {.draw = next.draw, .offset = start.offset, .given = start.given}));
}

epoch_tail tail_in(const state& from) {
  epoch_tail out;
  const auto* r = from.find(tail_record);
  if (r == nullptr || r->empty()) return out;
  out.epoch = (*r)[0];
  for (std::size_t i = 1; i < r->size();) {
    const auto lanes = static_cast<std::size_t>((*r)[i++]);
    if (lanes == 0 || lanes > (r->size() - i) / 3) {
      throw failure(error(errc::bad_state, "the saved state's tail is not well formed"));
    }
    std::vector<lane_cursor> level;
    for (std::size_t l = 0; l < lanes; ++l, i += 3) {
      level.push_back({.draw = (*r)[i], .offset = (*r)[i + 1], .given = (*r)[i + 2]});
    }
    out.levels.push_back(std::move(level));
  }
  const auto* seen = from.find(tail_seen_record);
  if (seen == nullptr) return out;
  std::size_t cursors = 0;
  for (const auto& level : out.levels) cursors += level.size();
  // Older versions wrote only the first two values.
  const std::size_t values = seen->size() == 2 * cursors ? 2 : 3;
  std::size_t i = 0;
  for (auto& level : out.levels) {
    for (lane_cursor& c : level) {
      if (i + values > seen->size()) return out;
      c.before = {.damage = (*seen)[i] != 0,
                  .usual = (*seen)[i + 1],
                  .told = values > 2 ? (*seen)[i + 2] : 0};
      i += values;
    }
  }
  return out;
}

void put_tail(state& to, const epoch_tail& tail) {
  if (tail.levels.empty()) return;
  state::record r{tail.epoch};
  state::record seen;
  for (const auto& level : tail.levels) {
    r.push_back(std::ssize(level));
    for (const lane_cursor& c : level) {
      r.insert(r.end(), {c.draw, c.offset, c.given});
      seen.insert(seen.end(), {c.before.damage ? 1 : 0, c.before.usual, c.before.told});
    }
  }
  to.put(tail_record, std::move(r));
  if (std::ranges::any_of(seen, [](std::int64_t n) { return n != 0; })) {
    to.put(tail_seen_record, std::move(seen));
  }
}

group_record group_record::in(const state& from, const std::string& name) {
  const auto* r = from.find(name);
  const auto value = [r](std::size_t i) { return r != nullptr && i < r->size() ? (*r)[i] : 0; };
  if (value(1) != 0) {
    throw failure(error(errc::bad_state,
                        "the saved state, of an older version, is within a sample that is left out")
                      .hint("resume from another checkpoint"));
  }
  return {.owes_end = value(0) != 0,
          .before = {.damage = value(2) != 0, .usual = value(3), .told = value(4)}};
}

void group_record::put(state& to, const std::string& name) const {
  to.put(name, {owes_end ? 1 : 0, 0, before.damage ? 1 : 0, before.usual, before.told});
}

void group_record::deal(const dealing& what, state& to) {
  bool is_saved = false;
  group_record fresh;
  for (std::int64_t l = 0; l < what.lanes_before; ++l) {
    const std::string of_lane = lane_record_name(l, name);
    is_saved = is_saved || what.from.find(of_lane) != nullptr;
    if (fresh.before.usual == 0) fresh.before.usual = in(what.from, of_lane).before.usual;
  }
  for (std::int64_t l = 0; is_saved && l < what.lanes; ++l)
    fresh.put(to, lane_record_name(l, name));
}

void check_all_claimed(const state& saved, const state& now) {
  const auto stage_of = [](const std::string& name) {
    return name.substr(0, name.find(of_rank_begin));
  };
  for (const auto& [name, values] : saved.records()) {
    const std::string stage = stage_of(name);
    // Lanes reassign, and check, what lanes and ranks wrote.
    const bool is_known = is_name_of_lanes(name) || is_of_position(name) ||
                          std::ranges::any_of(now.records(), [&](const auto& r) {
                            return stage_of(r.first) == stage;
                          });
    if (is_known) continue;
    throw failure(
        error(errc::bad_state, "no stage of this plan has the saved state's record " + name)
            .hint("resume with the stages that it was saved with"));
  }
}

}  // namespace millrace
