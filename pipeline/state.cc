#include "pipeline/state.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

using nlohmann::json;

constexpr int version = 2;
constexpr std::int64_t tar_block = 512;

std::string checksum_of(const json& records, const json& held) {
  return fmt::format("{:016x}", fingerprint(held.dump(), fingerprint(records.dump())));
}

error bad(std::string what) {
  return error(errc::bad_state, std::move(what)).hint("start without it, or take an older one");
}

// Each number as what it is more than the one before. Sums wrap round, as damaged ones may.
json steps_of(std::span<const origin> run, std::int64_t origin::* what, std::int64_t unit) {
  json out = json::array();
  std::uint64_t last = 0;
  for (const origin& o : run) {
    const auto value = static_cast<std::uint64_t>(o.*what / unit);
    out.push_back(static_cast<std::int64_t>(value - last));
    last = value;
  }
  return out;
}

bool add_steps(std::span<origin> run, std::int64_t origin::* what, const json& steps,
               std::int64_t unit) {
  if (!steps.is_array() || steps.size() != run.size()) return false;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < run.size(); ++i) {
    if (!steps[i].is_number_integer()) return false;
    sum += static_cast<std::uint64_t>(steps[i].get<std::int64_t>());
    run[i].*what = static_cast<std::int64_t>(sum * static_cast<std::uint64_t>(unit));
  }
  return true;
}

// [lane, epoch, shard, unit of offsets, steps of offsets, steps of positions], the last one where
// there are any, for each run of samples of one shard.
json runs_of(std::span<const origin> held) {
  json out = json::array();
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
    json made{first.lane, first.epoch, first.shard, unit, steps_of(run, &origin::offset, unit)};
    if (has_positions) made.push_back(steps_of(run, &origin::position, 1));
    out.push_back(std::move(made));
    held = held.subspan(n);
  }
  return out;
}

bool add_run(std::vector<origin>& to, const json& run) {
  constexpr std::size_t offsets = 4;
  constexpr std::size_t positions = 5;
  if (!run.is_array() || run.size() <= offsets || run.size() > positions + 1) return false;
  for (std::size_t i = 0; i < offsets; ++i) {
    if (!run[i].is_number_integer()) return false;
  }
  const auto unit = run[3].get<std::int64_t>();
  if ((unit != 1 && unit != tar_block) || !run[offsets].is_array()) return false;
  const std::size_t before = to.size();
  to.resize(before + run[offsets].size(), {.lane = run[0].get<std::int64_t>(),
                                           .shard = run[2].get<std::int64_t>(),
                                           .epoch = run[1].get<std::int64_t>()});
  const auto made = std::span(to).subspan(before);
  return add_steps(made, &origin::offset, run[offsets], unit) &&
         (run.size() == positions || add_steps(made, &origin::position, run[positions], 1));
}

}  // namespace

std::uint64_t fingerprint(std::string_view text, std::uint64_t so_far) {
  for (const char c : text) {
    so_far = (so_far ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return so_far;
}

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

std::string state::to_json() const {
  const json records = records_;
  json held = json::object();
  for (const auto& [name, samples] : held_) held[name] = runs_of(samples);
  return json{{"millrace_state", version},
              {"checksum", checksum_of(records, held)},
              {"records", records},
              {"held", held}}
      .dump();
}

result<state> state::from_json(std::string_view text) {
  const auto parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("millrace_state") || !parsed.contains("records")) {
    return bad("the saved state is not a state of millrace");
  }
  if (parsed["millrace_state"] != version) {
    return bad(fmt::format("the saved state has version {}, this build reads {}",
                           parsed["millrace_state"].dump(), version));
  }
  const json held = parsed.value("held", json::object());
  const json& records = parsed["records"];
  if (!parsed.contains("checksum") || parsed["checksum"] != checksum_of(records, held)) {
    return bad("the saved state is damaged: its checksum does not match");
  }
  state made;
  try {
    for (const auto& [name, values] : records.items()) made.records_[name] = values.get<record>();
  } catch (const json::exception&) {
    return bad("the saved state has a record that is no list of numbers");
  }
  for (const auto& [name, runs] : held.items()) {
    std::vector<origin> samples;
    for (const json& run : runs) {
      if (!add_run(samples, run)) {
        return bad(
            fmt::format("what the saved state says of the samples of {} is no such list", name));
      }
    }
    made.hold(name, samples);
  }
  return made;
}

}  // namespace millrace
