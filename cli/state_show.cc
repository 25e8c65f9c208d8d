#include "cli/state_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "pipeline/shards/shards.h"
#include "pipeline/state/lane_names.h"
#include "pipeline/state/records.h"

namespace millrace::cli {
namespace {

struct lane_position {
  lane_record counts;
  std::optional<lane_cursor> at;      // nullopt: of a mix
  std::optional<std::int64_t> shard;  // in the list, if the lane is in the middle of it
  std::int64_t held = 0;
};

struct position_of_run {
  std::int64_t epoch = 0;
  std::int64_t given = 0;  // of it
  bool is_exact = true;    // that number
  std::int64_t held = 0;
  std::vector<lane_position> lanes;
  std::int64_t lanes_in_all = 0;
  std::string mode;
  bool is_permuted = false;
  bool is_redistributed = false;
  std::optional<std::int64_t> ranks;  // nullopt: not recorded
  std::int64_t skipped = 0;
  std::optional<stretch_record> stretch;
};

std::int64_t number_of_lane(std::string_view name) {
  constexpr std::string_view begin = "lane";
  std::int64_t number = -1;
  std::from_chars(name.data() + begin.size(), name.data() + name.size(), number);
  return number;
}

lane_position position_of(const state& whole, const lane_record& counts) {
  lane_position out{.counts = counts, .at = {}, .shard = {}};
  const std::string cursor = lane_record_name(counts.lane, cursor_record::name);
  if (whole.find(cursor) != nullptr) out.at = cursor_record::in(whole, cursor).second;
  const auto head = shard_head::in(whole, lane_record_name(counts.lane, shard_head::record));
  if (out.at && out.at->offset > 0 && head.is_known()) out.shard = head.shard;
  for (const auto& [name, samples] : whole.all_held()) {
    const auto [of_lane, record] = split_lane_name(name);
    if (of_lane.empty()) {
      out.held += std::ranges::count(samples, counts.lane, &origin::lane);
    } else if (number_of_lane(of_lane) == counts.lane) {
      out.held += std::ssize(samples);
    }
  }
  return out;
}

// Of the first stage that counts them, over all ranks; and the number of ranks.
void add_counts(position_of_run& to, const state& whole) {
  const std::string begin = std::string(skipped_record) + of_rank_begin;
  for (const auto& [name, values] : whole.records()) {
    if (name.starts_with(begin) && !values.empty()) to.skipped += values.front();
    const auto of = name.find(of_rank_begin);
    const auto last = name.rfind(' ');
    if (of == name.npos || last == name.npos) continue;
    std::int64_t ranks = 0;
    std::from_chars(name.data() + last + 1, name.data() + name.size(), ranks);
    if (ranks > 0) to.ranks = ranks;
  }
}

position_of_run position_in(const state& whole) {
  check_numbers(whole);
  const auto plan = plan_record::in(whole);
  if (!plan) throw failure(error(errc::bad_state, "the state has no plan"));
  position_of_run out{.epoch = consumers_epoch(whole)};
  const std::int64_t mode = plan->mode;
  const bool is_known = mode >= 0 && mode < std::ssize(epoch_mode_names);
  out.mode = is_known ? std::string(epoch_mode_names[static_cast<std::size_t>(mode)])
                      : std::to_string(mode);
  out.is_permuted = plan->is_shuffled;
  out.lanes_in_all = plan->lanes;
  out.stretch = stretch_record::in(whole);
  out.is_redistributed = whole.find(tail_record) != nullptr || position_base(whole) > 0;
  out.given = position_base(whole);
  out.is_exact = !out.is_redistributed;
  for (const lane_record& l : lane_records(whole)) {
    out.held += out.lanes.emplace_back(position_of(whole, l)).held;
    if (l.epoch != out.epoch) {
      out.is_exact = false;  // what it gave of this one is not recorded
      continue;
    }
    out.given += l.given - std::ranges::count_if(whole.held(pending_record), [&](const origin& o) {
                   return o.lane == l.lane && o.epoch == l.epoch;
                 });
  }
  add_counts(out, whole);
  return out;
}

nlohmann::json to_json(const position_of_run& p) {
  auto lanes = nlohmann::json::array();
  for (const lane_position& l : p.lanes) {
    nlohmann::json one{{"lane", l.counts.lane},     {"epoch", l.counts.epoch},
                       {"given", l.counts.given},   {"held", l.held},
                       {"failed", l.counts.failed}, {"ended", l.counts.ended},
                       {"shard_of_lane", nullptr},  {"offset", nullptr},
                       {"given_of_shard", nullptr}, {"shard", nullptr}};
    if (l.at) {
      one["shard_of_lane"] = l.at->draw;
      one["offset"] = l.at->offset;
      one["given_of_shard"] = l.at->given;
    }
    if (l.shard) one["shard"] = *l.shard;
    lanes.push_back(std::move(one));
  }
  nlohmann::json out{{"epoch", p.epoch},
                     {"given", p.given},
                     {"given_is_exact", p.is_exact},
                     {"held", p.held},
                     {"lanes", std::move(lanes)},
                     {"lanes_in_all", p.lanes_in_all},
                     {"ranks", nullptr},
                     {"loader_mode", p.mode},
                     {"shuffled", p.is_permuted},
                     {"redistributed", p.is_redistributed},
                     {"skipped", p.skipped},
                     {"passes_over", nullptr}};
  if (p.ranks) out["ranks"] = *p.ranks;
  if (p.stretch) {
    out["passes_over"] = {{"epoch", p.stretch->epoch}, {"positions_below", p.stretch->below}};
  }
  return out;
}

nlohmann::json to_json(const checkpoint_record& c) {
  return {{"step", c.step},
          {"run", c.run},
          {"epoch", c.epoch},
          {"batch_in_epoch", c.batch_in_epoch},
          {"epoch_batches", c.epoch_batches},
          {"samples", c.samples},
          {"batch_size", c.batch_size},
          {"world_size", c.world_size}};
}

std::string counted_samples(std::int64_t n) {
  return counted(static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0)), "sample");
}

void print(const checkpoint_record& c) {
  fmt::print("      step: {} of run {}\n", c.step, printable(c.run));
  fmt::print("  training: epoch {}, {} of it trained on{}\n", c.epoch,
             counted(static_cast<std::uint64_t>(c.batch_in_epoch), "batch", "batches"),
             c.epoch_batches > 0 ? fmt::format(" of {}", c.epoch_batches) : "");
  fmt::print("     batch: {} on each of {}\n", counted_samples(c.batch_size),
             counted(static_cast<std::uint64_t>(c.world_size), "rank"));
}

// The mode of a trainer is an option of its own, whose loader runs in another one.
void print(const position_of_run& p, bool is_of_training) {
  fmt::print("      data: epoch {}, {}{} given of it, {} held\n", p.epoch,
             p.is_exact ? "" : "about ", counted_samples(p.given), p.held);
  fmt::print("     order: {} lanes{}{}, {}{}{}\n", p.lanes_in_all,
             std::ssize(p.lanes) == p.lanes_in_all
                 ? ""
                 : fmt::format(", {} of them in this state", p.lanes.size()),
             is_of_training ? "" : ", loader mode " + p.mode,
             p.is_permuted ? "shuffled shards" : "shards in order",
             p.ranks ? ", of " + counted(static_cast<std::uint64_t>(*p.ranks), "rank") : "",
             p.is_redistributed ? ", redistributed from other lanes" : "");
  fmt::print("   skipped: {}\n", counted_samples(p.skipped));
  if (p.stretch) {
    fmt::print("   to skip: what is below position {} of epoch {}\n", p.stretch->below,
               p.stretch->epoch);
  }
  fmt::print("\nlane  epoch  shard of lane  in the list          byte      given   held  failed\n");
  for (const lane_position& l : p.lanes) {
    const auto text = [](const auto& n) { return n ? fmt::format("{}", *n) : std::string("-"); };
    std::optional<std::int64_t> draw;
    std::optional<std::int64_t> offset;
    if (l.at) {
      draw = l.at->draw;
      offset = l.at->offset;
    }
    fmt::print("{:4}  {:5}  {:>13}  {:>11}  {:>12}  {:9}  {:5}  {:6}{}\n", l.counts.lane,
               l.counts.epoch, text(draw), text(l.shard), text(offset), l.counts.given, l.held,
               l.counts.failed, l.counts.ended ? "  ended" : "");
  }
}

}  // namespace

void show_state(const std::string& file, const state& whole, const checkpoint_record* of,
                bool json) {
  const position_of_run found = position_in(whole);
  if (json) {
    nlohmann::json out = to_json(found);
    out["file"] = file;
    if (of != nullptr) out["checkpoint"] = to_json(*of);
    return print_json(out);
  }
  fmt::print("{}: {}\n", printable(file), of != nullptr ? "a checkpoint" : "a saved state");
  if (of != nullptr) print(*of);
  print(found, of != nullptr);
}

}  // namespace millrace::cli
