#include "bench/tune.h"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/storage_text.h"
#include "io/disk.h"

namespace millrace::cli {
namespace {

struct arguments {
  shard_arguments what;
  int streams = 0;
  double seconds = 30;
  bool json = false;
};

std::string setting_text(const trial& t) {
  return t.variable.empty() ? "(as set now)" : t.variable + "=" + t.value;
}

void print_row(const trial& t) {
  fmt::print("{:32} {:>9.1f} {:>9.2f} {:>10.3f}  {}\n", setting_text(t), t.mb_per_s, 1e3 * t.p99_s,
             t.cpu_s_per_gb, t.meaning);
  std::fflush(stdout);
}

// The equation of a rotational device, for the shards that training keeps open.
void print_equation(const storage& on, const engine_options& how) {
  const disk_speed speed = usual_speed(on.spindles);
  constexpr std::size_t open_shards = 8;
  const std::size_t budget = how.memory_bytes > 0 ? how.memory_bytes : default_memory_bytes();
  fmt::print(
      "\nturns of E bytes give E / (E + r t) of the rate; with r {:.0f} MB/s and a move of t "
      "{:.1f} ms:\n",
      speed.bytes_per_s / 1e6, 1e3 * speed.move_s);
  for (const std::size_t mib : {4U, 16U, 40U, 160U}) {
    fmt::print("  {:>4} MiB: {:.2f} of the rate, {} for {} open shards\n", mib,
               speed.share_at(mib * 1_MiB), format_bytes(mib * 2_MiB * open_shards), open_shards);
  }
  fmt::print("  within the budget of {}: {:.2f}\n", format_bytes(budget),
             std::min(wanted_share, speed.share_at(affordable_extent(budget / open_shards,
                                                                     how.source.chunk_bytes))));
}

bool is_file(const std::string& url) {
  const auto where = parse_url(url);
  return where && where->scheme == "file";
}

int tune(const environment& e, const arguments& a) {
  const engine_options how = a.what.engine(e);
  const std::vector<std::string> urls = a.what.urls(e);
  const auto files = std::ranges::count_if(urls, is_file);
  if (files != 0 && files != std::ssize(urls)) {
    throw failure(
        error(errc::usage, "files and URLs are tuned apart").hint("name one kind of them"));
  }
  if (!a.json) {
    fmt::print("{:32} {:>9} {:>9} {:>10}\n", "setting", "MB/s", "p99 ms", "CPU-s/GB");
  }
  const auto progress = [&](const trial& t) {
    if (!a.json) print_row(t);
  };
  constexpr int usual_connections = 8;
  const auto found = files > 0 ? tune_disk(how, urls, a.streams, a.seconds, progress, interrupted())
                               : tune_http(how, urls, a.streams > 0 ? a.streams : usual_connections,
                                           a.seconds, progress, interrupted());
  if (a.json) {
    auto trials = nlohmann::json::array();
    for (const trial& t : found.trials) {
      trials.push_back({{"variable", t.variable},
                        {"value", t.value},
                        {"mb_per_s", t.mb_per_s},
                        {"p99_ms", 1e3 * t.p99_s},
                        {"cpu_s_per_gb", t.cpu_s_per_gb},
                        {"kept", t.kept}});
    }
    auto exports = nlohmann::json::object();
    for (const auto& g : found.gains)
      exports[g.variable] = {{"value", g.value}, {"reason", g.reason}};
    fmt::print("{}\n", nlohmann::json{{"trials", trials}, {"exports", exports}}.dump());
  } else {
    const auto on = files > 0 ? storage_of(files_below(urls).front()) : std::nullopt;
    if (on && with_overrides(*on, how.source).rotational) {
      print_equation(with_overrides(*on, how.source), how);
    }
    fmt::print("\n");
    for (const auto& g : found.gains) {
      fmt::print("export {}={}  # {}\n", g.variable, g.value, g.reason);
    }
    if (found.gains.empty()) {
      fmt::print("nothing is gained: no setting gives {:.0f} % more than those in use\n",
                 100 * (least_gain - 1));
    }
  }
  if (!interrupted()) return 0;
  std::fflush(stdout);
  std::_Exit(130);
}

}  // namespace

action add_tune(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "tune", "tries settings on files or URLs and prints those that gain, with the reason");
  auto a = std::make_shared<arguments>();
  a->what.add_to(*command);
  command
      ->add_option("--streams", a->streams,
                   "files or objects read at once (files: one for each, 8 at most; objects: 8)")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--seconds", a->seconds, "how long it may take, about (30)")
      ->check(CLI::Range(1.0, 86400.0));
  command->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return tune(e, *a); };
}

}  // namespace millrace::cli
