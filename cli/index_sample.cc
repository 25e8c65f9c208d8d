#include "cli/index_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/printable.h"
#include "engine/host/standard_error.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/indexed_dataset.h"
#include "pipeline/wids/read_index.h"

namespace millrace::cli {
namespace {

// A field as it is printed: text, else its size.
std::string shown(std::string_view content, std::size_t width) {
  const bool is_text = std::ranges::all_of(
      content, [](char c) { return (c >= ' ' && c != 0x7f) || c == '\n' || c == '\t'; });
  if (!is_text) return fmt::format("{} bytes", content.size());
  return nlohmann::json(std::string(content.substr(0, width)))
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)
      .substr(0, width);
}

// The object of --json: the sizes of the sample's fields, and the content of those that are text.
nlohmann::json to_json(const sample& s, std::int64_t number) {
  auto fields = nlohmann::json::object();
  for (const field& f : s.fields) {
    const std::string_view content = f.data.text();
    const bool is_text = std::ranges::all_of(
        content, [](char c) { return (c >= ' ' && c != 0x7f) || c == '\n' || c == '\t'; });
    fields[f.extension] = {{"bytes", content.size()}};
    if (is_text) fields[f.extension]["text"] = std::string(content);
  }
  return {{"index", number}, {"key", s.key}, {"shard", redacted(*s.url)}, {"fields", fields}};
}

}  // namespace

int show_index_sample(const environment& e, const index_sample_arguments& a) {
  engine eng(engine_options::from(e.variables));
  indexed_dataset data(eng, read_index(eng, a.file));
  if (!a.json) to_stderr("dataset size: {}\n", data.size());
  const sample s = data.get(a.index);
  if (a.json) {
    print_json(to_json(s, a.index));
    return 0;
  }
  if (!a.field.empty()) {
    const field* f = s.find(a.field.starts_with('.') ? a.field.substr(1) : a.field);
    if (f == nullptr) {
      throw failure(error(errc::missing_field, fmt::format("no field '{}'", a.field)).key(s.key));
    }
    const auto written = std::fwrite(f->data.data(), 1, f->data.size(), stdout);
    return written == f->data.size() ? 0 : 1;
  }
  std::vector<std::pair<std::string, std::string>> lines;
  lines.reserve(s.fields.size() + 4);
  for (const field& f : s.fields)
    lines.emplace_back("." + printable(f.extension), shown(f.data.text(), a.width));
  lines.emplace_back("__index__", std::to_string(a.index));
  lines.emplace_back("__key__", "'" + printable(s.key) + "'");
  lines.emplace_back("__shard__", "'" + printable(redacted(*s.url)) + "'");
  lines.emplace_back("__shardindex__", std::to_string(data.find(a.index).sample));
  std::ranges::sort(lines);
  std::size_t longest = 0;
  for (const auto& [name, text] : lines) longest = std::max(longest, name.size());
  for (const auto& [name, text] : lines) {
    fmt::print("{:{}} {}\n", name, longest,
               text.substr(0, std::max(a.width, longest + 2) - longest - 1));
  }
  return 0;
}

}  // namespace millrace::cli
