#include "pipeline/state.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

constexpr int version = 1;

std::string checksum_of(const nlohmann::json& records) {
  return fmt::format("{:016x}", fingerprint(records.dump()));
}

error bad(std::string what) {
  return error(errc::bad_state, std::move(what)).hint("start without it, or take an older one");
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

const state::record* state::find(const std::string& name) const {
  const auto it = records_.find(name);
  return it == records_.end() ? nullptr : &it->second;
}

std::string state::to_json() const {
  const nlohmann::json records = records_;
  return nlohmann::json{
      {"millrace_state", version}, {"checksum", checksum_of(records)}, {"records", records}}
      .dump();
}

result<state> state::from_json(std::string_view text) {
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("millrace_state") || !parsed.contains("records")) {
    return bad("the saved state is not a state of millrace");
  }
  if (parsed["millrace_state"] != version) {
    return bad(fmt::format("the saved state has version {}, this build reads {}",
                           parsed["millrace_state"].dump(), version));
  }
  if (parsed.value("checksum", "") != checksum_of(parsed["records"])) {
    return bad("the saved state is damaged: its checksum does not match");
  }
  state made;
  for (const auto& [name, values] : parsed["records"].items()) {
    made.records_[name] = values.get<record>();
  }
  return made;
}

void append_origin(state::record& to, const origin& where) {
  to.insert(to.end(), {where.lane, where.shard, where.offset, where.epoch, where.position});
}

result<std::vector<origin>> origins_in(std::span<const std::int64_t> values) {
  if (values.size() % origin_fields != 0) return bad("the saved state lists half a sample");
  std::vector<origin> out;
  for (std::size_t i = 0; i < values.size(); i += origin_fields) {
    out.push_back({.lane = values[i],
                   .shard = values[i + 1],
                   .offset = values[i + 2],
                   .epoch = values[i + 3],
                   .position = values[i + 4]});
  }
  return out;
}

}  // namespace millrace
