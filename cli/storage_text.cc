#include "cli/storage_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/units.h"
#include "engine/base/words.h"

namespace millrace::cli {
namespace {

std::string description(const block_device& d) {
  std::string text = d.kind;
  text += d.rotational ? ", rotational" : ", not rotational";
  if (d.virtual_disk) text += " (virtual)";
  if (d.spindles > 1) {
    text += fmt::format(", {} spindles, chunk {}", d.spindles, format_bytes(d.chunk_bytes));
  }
  if (!d.scheduler.empty()) text += ", scheduler " + d.scheduler;
  if (d.queue_requests > 0)
    text += ", " + counted(static_cast<std::uint64_t>(d.queue_requests), "request");
  if (d.read_ahead_bytes > 0) {
    text += fmt::format(", read-ahead {}", format_bytes(d.read_ahead_bytes));
  }
  return text;
}

void add_lines(const block_device& d, const std::string& indent, bool last, std::string& out) {
  out += fmt::format("{}{} {}: {}\n", indent, last ? "└─" : "├─", d.name, description(d));
  for (std::size_t i = 0; i < d.below.size(); ++i) {
    add_lines(d.below[i], indent + (last ? "   " : "│  "), i + 1 == d.below.size(), out);
  }
}

nlohmann::json device_json(const block_device& d) {
  auto below = nlohmann::json::array();
  for (const auto& b : d.below) below.push_back(device_json(b));
  return {{"name", d.name},
          {"kind", d.kind},
          {"rotational", d.rotational},
          {"virtual", d.virtual_disk},
          {"spindles", d.spindles},
          {"chunk_bytes", d.chunk_bytes},
          {"queue_requests", d.queue_requests},
          {"scheduler", d.scheduler},
          {"read_ahead_bytes", d.read_ahead_bytes},
          {"below", std::move(below)}};
}

std::string title(const storage& s) {
  return fmt::format("{} ({})", s.mount_point.empty() ? "?" : s.mount_point,
                     s.file_system.empty() ? "unknown" : s.file_system);
}

}  // namespace

std::string storage_line(const storage& s) {
  std::string line =
      fmt::format("{} on {}: ", s.devices.empty() ? s.identity : s.devices.front().name, title(s));
  if (!s.rotational) {
    line += "not rotational";
  } else if (s.spindles == 1) {
    line += "rotational, 1 spindle";
  } else {
    line +=
        fmt::format("rotational, {} spindles, chunk {}", s.spindles, format_bytes(s.chunk_bytes));
  }
  if (!s.remark.empty()) line += "; " + s.remark;
  return line;
}

std::string storage_tree(const storage& s) {
  std::string out = title(s) + (s.remark.empty() ? "" : ": " + s.remark) + "\n";
  for (std::size_t i = 0; i < s.devices.size(); ++i) {
    add_lines(s.devices[i], "", i + 1 == s.devices.size(), out);
  }
  return out;
}

nlohmann::json storage_json(const storage& s) {
  auto devices = nlohmann::json::array();
  for (const auto& d : s.devices) devices.push_back(device_json(d));
  return {{"mount_point", s.mount_point}, {"file_system", s.file_system},
          {"rotational", s.rotational},   {"spindles", s.spindles},
          {"chunk_bytes", s.chunk_bytes}, {"identity", s.identity},
          {"remark", s.remark},           {"devices", std::move(devices)}};
}

}  // namespace millrace::cli
