#include "cli/command.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/flag_names.h"
#include "cli/interrupt.h"
#include "engine/base/parsed_number.h"
#include "engine/base/printable.h"
#include "engine/host/standard_error.h"
#include "io/names/url.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/untar.h"
#include "pipeline/shards/shards.h"
#include "pipeline/stages/on_error.h"
#include "pipeline/wids/index_entries.h"
#include "tools/index/index_files.h"

namespace millrace::cli {

namespace {

// Checks that a number is in range; its error names `range`.
template <class T, class Function>
CLI::Validator numbers(std::string range, Function is_in) {
  // No description: the help shows the option's unit instead.
  return {[range = std::move(range), is_in](const std::string& text) -> std::string {
            const auto value = parsed_number<T>(text);
            if (!value) {
              return fmt::format("'{}' is not a {}; use {}", text,
                                 std::is_integral_v<T> ? "whole number" : "number", range);
            }
            return is_in(*value) ? "" : fmt::format("{} is not {}", text, range);
          },
          ""};
}

}  // namespace

error in_program_words(const error& why) {
  return millrace::in_program_words(why, flag_names);
}

CLI::Validator whole_in_range(std::int64_t least, std::int64_t most) {
  return numbers<std::int64_t>(fmt::format("{} to {}", least, most),
                               [=](std::int64_t n) { return n >= least && n <= most; });
}

CLI::Validator in_range(double least, double most) {
  return numbers<double>(fmt::format("{} to {}", least, most),
                         [=](double n) { return n >= least && n <= most; });
}

CLI::Validator above_zero() {
  return numbers<double>("a number above 0", [](double n) { return n > 0 && std::isfinite(n); });
}

CLI::Validator seed_number() {
  return numbers<std::uint64_t>(fmt::format("0 to {}", std::numeric_limits<std::uint64_t>::max()),
                                [](std::uint64_t) { return true; });
}

void refuse_empty_values(CLI::App& app) {
  // The description is empty: it would be shown in the help.
  const CLI::Validator is_text(
      [](const std::string& text) {
        return text.empty() ? "the value is empty; write one, or leave it out" : std::string();
      },
      "");
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_size() != 0) option->check(is_text);
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    refuse_empty_values(*command);
  }
}

void add_json(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "print one JSON object as the last line")->group("Output");
}

namespace {

// Escapes bytes of names that are not UTF-8: replacing them could make two names equal.
nlohmann::json with_names_in_utf8(const nlohmann::json& value) {
  if (!value.is_structured()) return value;
  nlohmann::json out = value.is_array() ? nlohmann::json::array() : nlohmann::json::object();
  for (const auto& [name, member] : value.items()) {
    if (value.is_array()) {
      out.push_back(with_names_in_utf8(member));
    } else {
      out[is_utf8(name) ? name : printable(name)] = with_names_in_utf8(member);
    }
  }
  return out;
}

std::string line_of(const nlohmann::json& value) {
  constexpr auto replace = nlohmann::json::error_handler_t::replace;
  try {
    return value.dump();
  } catch (const nlohmann::json::type_error&) {  // not UTF-8
    return with_names_in_utf8(value).dump(-1, ' ', false, replace);
  }
}

}  // namespace

void print_json(const nlohmann::json& object, std::FILE* to) {
  fmt::print(to, "{}\n", line_of(object));
}

nlohmann::json durations_json(const latency_histogram& durations) {
  return {{"count", durations.count()},
          {"p50_ms", 1e3 * durations.percentile(0.5)},
          {"p99_ms", 1e3 * durations.percentile(0.99)},
          {"max_ms", 1e3 * durations.most()}};
}

nlohmann::json sources_json(const source_counters& counters) {
  nlohmann::json out;
  source_counters::each(
      [&](std::string_view name, auto figure, auto) { out[std::string(name)] = counters.*figure; });
  out["reads"] = durations_json(counters.reads);
  out["first_byte"] = durations_json(counters.first_bytes);
  return out;
}

json_list::~json_list() {
  // If this cannot be written, the exception in flight says so.
  if (begun_ && !ended_) std::fputs("]}\n", stdout);
}

void json_list::begin() {
  if (!std::exchange(begun_, true)) fmt::print("{{{}:[", line_of(name_));
}

void json_list::add(const nlohmann::json& item) {
  begin();
  const std::string comma = std::exchange(has_items_, true) ? "," : "";
  fmt::print("{}{}", comma, line_of(item));
}

void json_list::end(const nlohmann::json& rest) {
  begin();
  ended_ = true;
  // Its members follow those of the list.
  fmt::print("],{}\n", line_of(rest).substr(1));
}

int end_of_bench(bool has_figures, bool interrupted, bool json,
                 const std::function<nlohmann::json()>& to_json,
                 const std::function<void()>& print) {
  if (json) {
    print_json(has_figures ? to_json() : nlohmann::json{{"interrupted", interrupted}});
  } else if (has_figures) {
    print();
  }
  return interrupted ? exit_code_of_interrupt() : 0;
}

std::vector<std::string> paths_and_urls(const std::vector<std::string>& specs,
                                        const std::string& base, const source_options& options) {
  std::vector<std::string> out;
  for (const std::string& spec : specs) {
    std::error_code unknown;
    if (base.empty() && std::filesystem::exists(spec, unknown)) {
      out.push_back(spec);
      continue;
    }
    const auto urls = find_shards({spec}, base, options).value();
    out.insert(out.end(), urls.begin(), urls.end());
  }
  return out;
}

std::vector<std::string> paths_alone(const std::vector<std::string>& specs,
                                     const source_options& options, const char* refused,
                                     const char* hint) {
  std::vector<std::string> out;
  for (const std::string& url : paths_and_urls(specs, "", options)) {
    const auto where = parse_url(url).value();
    if (where.scheme != "file") throw failure(error(errc::usage, refused).at(url).hint(hint));
    out.push_back(where.path);
  }
  return out;
}

void shard_arguments::add_to(CLI::App& app, bool required) {
  app.add_option("SHARD", specs,
                 "shards: paths, URLs, brace ranges, '::' lists, @FILE with one per line, '-' for "
                 "stdin, '*'; folders and prefixes of object stores")
      ->required(required);
  app.add_option("--base", base, "prefix of relative names, or a pattern with %s or {} for them")
      ->type_name("URL")
      ->group("Input");
  app.add_flag("--allow-pipe", allow_pipe,
               "pipe: URLs may run shell commands (MILLRACE_ALLOW_PIPE=1)")
      ->group("Input");
}

engine_options shard_arguments::engine(const environment& e) const {
  engine_options how = engine_options::from(e.variables);
  how.source.allow_pipe |= allow_pipe;
  how.in_words = [](const std::string& text) {
    return millrace::in_program_words(text, flag_names);
  };
  return how;
}

std::vector<std::string> shard_arguments::urls(const environment& e, listing_facts* facts) const {
  return find_shards(specs, base, engine(e).source, facts).value();
}

void sample_walk::add_to(CLI::App& app) {
  shards.add_to(app);
  app.add_flag("--resync", resync,
               "continue after damage at the next valid header, and list what was lost")
      ->group("Input");
}

amount_of_work sample_walk::work_of(const std::vector<std::string>& urls) {
  return {.bytes = bytes_of_files(urls), .items = urls.size()};
}

plan<sample> sample_walk::samples(const std::vector<std::string>& urls) const {
  const shard_list_options in_order{.lanes = 1, .shuffle = false};
  return millrace::shards(urls, in_order) | untar({.resync = resync}) | group_by_key() |
         on_error(resync ? skip_errors() : fail_on_error());
}

int sample_walk::report_damage(const ledger& counts) {
  const std::uint64_t all = counts.skipped_in_all();
  if (all == 0) return 0;
  for (const std::string& what : counts.first_skipped) to_stderr("millrace: {}\n", what);
  if (all > counts.first_skipped.size()) {
    to_stderr("millrace: and {} more\n", all - counts.first_skipped.size());
  }
  to_stderr("millrace: {}\n", counts.summary());
  return exit_code(errc::integrity);
}

}  // namespace millrace::cli
