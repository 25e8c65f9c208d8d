#include "pipeline/state/state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/json_tree.h"
#include "engine/base/nesting.h"
#include "engine/host/host.h"
#include "pipeline/state/lane_names.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int version = 2;
constexpr std::int64_t tar_block = 512;

std::string checksum_of(const std::string& records, const std::string& held) {
  return fmt::format("{:016x}", fingerprint(held, fingerprint(records)));
}

std::string quoted(const std::string& text) {
  return json(text).dump();
}

std::string listed(std::span<const std::int64_t> numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ","));
}

template <class M, class F>
std::string object_of(const M& members, F text_of) {
  std::string out = "{";
  for (const auto& [name, value] : members) {
    if (out.size() > 1) out += ',';
    out += quoted(name) + ':' + text_of(value);
  }
  return out + '}';
}

error bad_text(std::string what) {
  return error(errc::bad_state, std::move(what)).hint("start without it, or use an older one");
}

// The difference of each number from the one before. Sums wrap around, because damaged numbers may
// overflow.
std::string steps_of(std::span<const origin> run, std::int64_t origin::* what, std::int64_t unit) {
  std::vector<std::int64_t> out;
  out.reserve(run.size());
  std::uint64_t last = 0;
  for (const origin& o : run) {
    const auto value = static_cast<std::uint64_t>(o.*what / unit);
    out.push_back(static_cast<std::int64_t>(value - last));
    last = value;
  }
  return listed(out);
}

bool add_steps(std::span<origin> run, std::int64_t origin::* what, const json_tree& in,
               std::int64_t unit) {
  const auto* const steps = in.as<json_tree::integers>();
  if (steps == nullptr || steps->size() != run.size()) return false;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < run.size(); ++i) {
    sum += static_cast<std::uint64_t>((*steps)[i]);
    run[i].*what = static_cast<std::int64_t>(sum * static_cast<std::uint64_t>(unit));
  }
  return true;
}

// Formats a list with, for each run of samples of one shard: [lane, epoch, shard, unit of offsets,
// steps of offsets, steps of positions]. The last is left out if all positions are 0.
std::string runs_of(std::span<const origin> held) {
  std::string out = "[";
  while (!held.empty()) {
    const origin& first = held.front();
    std::size_t n = 0;
    std::int64_t unit = tar_block;
    bool has_positions = false;
    while (n < held.size() && held[n].lane == first.lane && held[n].epoch == first.epoch &&
           held[n].shard == first.shard) {
      if (held[n].offset % tar_block != 0) unit = 1;
      has_positions = has_positions || held[n].position != 0;
      ++n;
    }
    const auto run = held.first(n);
    out += fmt::format("{}[{},{},{},{},{}", out.size() > 1 ? "," : "", first.lane, first.epoch,
                       first.shard, unit, steps_of(run, &origin::offset, unit));
    if (has_positions) out += ',' + steps_of(run, &origin::position, 1);
    out += ']';
    held = held.subspan(n);
  }
  return out + ']';
}

bool add_run(std::vector<origin>& to, const json_tree& in) {
  constexpr std::size_t offsets = 4;
  constexpr std::size_t positions = 5;
  const auto* const run = in.as<json_tree::list>();
  if (run == nullptr || run->size() <= offsets || run->size() > positions + 1) return false;
  std::array<std::int64_t, offsets> of{};  // lane, epoch, shard, unit
  for (std::size_t i = 0; i < offsets; ++i) {
    const auto* const number = (*run)[i].as<std::int64_t>();
    if (number == nullptr) return false;
    of[i] = *number;
  }
  const std::int64_t unit = of[3];
  const auto* const steps = (*run)[offsets].as<json_tree::integers>();
  if ((unit != 1 && unit != tar_block) || steps == nullptr) return false;
  const std::size_t before = to.size();
  to.resize(before + steps->size(), {.lane = of[0], .shard = of[2], .epoch = of[1]});
  const auto made = std::span(to).subspan(before);
  return add_steps(made, &origin::offset, (*run)[offsets], unit) &&
         (run->size() == positions || add_steps(made, &origin::position, (*run)[positions], 1));
}

// Whether a record was saved by a source of the mix in `within`; empty: of the mix of its lane.
bool is_of_source(std::string_view name, std::string_view within) {
  if (within.empty()) within = split_lane_name(name).first;
  if (!name.starts_with(within)) return false;
  name.remove_prefix(within.size());
  if (!name.starts_with(mix_record)) return false;
  name.remove_prefix(std::string_view(mix_record).size());
  const auto digits = name.find_first_not_of("0123456789");
  return digits > 0 && digits != name.npos && name[digits] == '/';
}

}  // namespace

void state::append(const std::string& name, std::span<const std::int64_t> values) {
  auto& to = records_[name];
  to.insert(to.end(), values.begin(), values.end());
}

void state::append(const state& other) {
  for (const auto& [name, values] : other.records_) append(name, values);
  for (const auto& [name, samples] : other.held_) hold(name, samples);
}

const state::record* state::find(const std::string& name) const {
  const auto it = records_.find(name);
  return it == records_.end() ? nullptr : &it->second;
}

void state::hold(const std::string& name, std::span<const origin> samples) {
  if (samples.empty()) return;
  auto& to = held_[name];
  to.insert(to.end(), samples.begin(), samples.end());
}

const std::vector<origin>& state::held(const std::string& name) const {
  static const std::vector<origin> none;
  const auto it = held_.find(name);
  return it == held_.end() ? none : it->second;
}

std::size_t state::samples_held() const {
  std::size_t all = 0;
  for (const auto& [name, samples] : held_) all += samples.size();
  return all;
}

std::size_t state::count_held(const origin& sample, std::string_view within) const {
  std::ptrdiff_t count = 0;
  for (const auto& [name, samples] : held_) {
    if (!is_of_source(name, within)) count += std::ranges::count(samples, sample);
  }
  return static_cast<std::size_t>(count);
}

std::span<origin> state::held_from(const std::string& name, std::size_t first) {
  const auto it = held_.find(name);
  if (it == held_.end() || it->second.size() <= first) return {};
  return std::span(it->second).subspan(first);
}

std::string state::to_json() const {
  const std::string records = object_of(records_, listed);
  const std::string held = object_of(held_, runs_of);
  return fmt::format(R"({{"checksum":"{}","held":{},"millrace_state":{},"records":{}}})",
                     checksum_of(records, held), held, version, records);
}

result<state> state::from_json(std::string_view text, std::size_t most) {
  if (const auto why = why_not_parsed(text)) return bad_text("not a saved state: " + *why);
  if (most == 0) most = default_memory_bytes();
  // Bounded to a quarter, because a number of the tree may become a sample's origin.
  const auto parsed = json_tree::read(text, {.most = most / 4});
  if (!parsed && parsed.error().kind() == errc::too_large) return parsed.error();
  const json_tree* const made_by = parsed ? parsed->find("millrace_state") : nullptr;
  const json_tree* const records = parsed ? parsed->find("records") : nullptr;
  if (made_by == nullptr || records == nullptr) {
    return bad_text("the saved state is not a state of millrace");
  }
  if (const auto* const v = made_by->as<std::int64_t>(); v == nullptr || *v != version) {
    return bad_text(fmt::format("the saved state has version {}, this build reads {}",
                                made_by->excerpt(), version));
  }
  const json_tree none{json_tree::object()};
  const json_tree* const any_held = parsed->find("held");
  const json_tree& held = any_held != nullptr ? *any_held : none;
  if (parsed->text_of("checksum") != checksum_of(records->dump(), held.dump())) {
    return bad_text("the saved state is damaged: its checksum does not match");
  }
  const auto* const all_records = records->as<json_tree::object>();
  const auto* const all_held = held.as<json_tree::object>();
  if (all_records == nullptr || all_held == nullptr) {
    return bad_text("the saved state is not a state of millrace");
  }
  state made;
  for (const auto& [name, values] : *all_records) {
    const auto* const numbers = values.as<json_tree::integers>();
    if (numbers == nullptr) return bad_text("a record of the saved state is not a list of numbers");
    made.records_[name] = *numbers;
  }
  for (const auto& [name, runs] : *all_held) {
    std::vector<origin> samples;
    const auto* const all = runs.as<json_tree::list>();
    if (all == nullptr ||
        !std::ranges::all_of(*all, [&](const json_tree& run) { return add_run(samples, run); })) {
      return bad_text(
          fmt::format("the saved state's list of the samples of {} is not valid", name));
    }
    made.hold(name, samples);
  }
  return made;
}

}  // namespace millrace
