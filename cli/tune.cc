#include "tools/bench/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/storage_text.h"
#include "engine/base/units.h"
#include "engine/host/host.h"
#include "io/disks/disk.h"

namespace millrace::cli {
namespace {

struct tune_arguments {
  shard_arguments what;
  int streams = 0;
  double seconds = 30;
  bool json = false;
};

std::string setting_text(const trial& t) {
  return t.variable.empty() ? fmt::format("({})", t.meaning) : t.variable + "=" + t.value;
}

void print_header() {
  print_line(fmt::format("{:32} {:>9} {:>17} {:>9} {:>10}  {:10}", "setting", "MB/s",
                         "least to most", "p99 ms", "CPU-s/GB", "from"));
}

void print_row(const trial& t) {
  print_line(
      fmt::format("{:32} {:>9.1f} {:>17} {:>9.2f} {:>10.3f}  {:10}  {}", setting_text(t),
                  t.mb_per_s, fmt::format("{:.1f} to {:.1f}", t.least_mb_per_s, t.most_mb_per_s),
                  1e3 * t.p99_s, t.cpu_s_per_gb, t.from, t.variable.empty() ? "" : t.meaning));
}

void print_tuning(const tuning& found) {
  auto trials = nlohmann::json::array();
  for (const trial& t : found.trials) {
    trials.push_back({{"variable", t.variable},
                      {"value", t.value},
                      {"mb_per_s", t.mb_per_s},
                      {"mb_per_s_least", t.least_mb_per_s},
                      {"mb_per_s_most", t.most_mb_per_s},
                      {"turns", t.turns},
                      {"from", t.from},
                      {"p99_ms", 1e3 * t.p99_s},
                      {"cpu_s_per_gb", t.cpu_s_per_gb},
                      {"kept", t.kept}});
  }
  auto exports = nlohmann::json::object();
  for (const auto& g : found.gains) {
    exports[g.variable] = {{"value", g.value}, {"reason", g.reason}};
  }
  fmt::print("{}\n", nlohmann::json{{"trials", trials},
                                    {"exports", exports},
                                    {"stopped", found.stopped},
                                    {"interrupted", found.stopped}}
                         .dump());
}

void print_advice(const tuning& found) {
  fmt::print("\n");
  for (const auto& g : found.gains) {
    fmt::print("export {}={}  # {}\n", g.variable, g.value, g.reason);
  }
  const auto cached = [](const trial& t) { return t.from == "page cache" || t.from == "mixed"; };
  if (std::ranges::any_of(found.trials, cached)) {
    fmt::print(
        "figures marked 'page cache' or 'mixed' are not the disk's; name more files than fit into "
        "memory\n");
  }
  if (found.stopped) {
    fmt::print("stopped: not every setting was tried\n");
  } else if (found.gains.empty()) {
    fmt::print(
        "no setting helps: none has a median {:.0f} % faster than the present settings and is "
        "faster in {:.0f} % of all pairs of turns\n",
        100 * (least_gain - 1), 100 * least_share);
  }
}

// The equation of a rotational device, for the shards that training keeps open.
void print_equation(const storage& on, const engine_options& how) {
  const disk_speed speed = usual_speed(on.spindles);
  constexpr std::size_t open_shards = 8;
  const std::size_t budget = how.memory_bytes > 0 ? how.memory_bytes : default_memory_bytes();
  fmt::print(
      "\nturns of E bytes reach E / (E + r t) of the rate; with r {:.0f} MB/s and a seek of t "
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

bool is_local_file(const std::string& url) {
  const auto where = parse_url(url);
  return where && where->scheme == "file";
}

int tune(const environment& e, const tune_arguments& a) {
  const engine_options how = a.what.engine(e);
  const std::vector<std::string> urls = paths_and_urls(a.what.specs, a.what.base, how.source);
  const auto files = std::ranges::count_if(urls, is_local_file);
  if (files != 0 && files != std::ssize(urls)) {
    throw failure(error(errc::usage, "files and URLs cannot be tuned together")
                      .hint("name either files or URLs"));
  }
  if (files > 0 && files_below(urls).empty()) {
    throw failure(error(errc::not_found, "no file in this folder").at(urls.front()));
  }
  // Before this, a signal ends it at once. It precedes the first line, whose reader may interrupt.
  const std::stop_token stop = stop_requested();
  std::atomic<std::uint64_t> trials = 0;
  progress shown("tune", {.noun = "setting", .seconds = a.seconds},
                 [&] { return work_done{0, trials}; });
  const auto tell = [&](const trial& t) {
    if (++trials == 1 && !a.json) print_header();
    if (!a.json) print_row(t);
  };
  constexpr int usual_connections = 8;
  const tuning_options options{.seconds = a.seconds, .progress = tell, .stop = stop};
  const auto found =
      files > 0 ? tune_disk(how, urls, a.streams, options)
                : tune_http(how, urls, a.streams > 0 ? a.streams : usual_connections, options);
  shown.end();
  if (a.json) {
    print_tuning(found);
  } else {
    const auto on = files > 0 ? storage_of(files_below(urls).front()) : result<storage>(error());
    if (on && with_overrides(*on, how.source).rotational) {
      print_equation(with_overrides(*on, how.source), how);
    }
    print_advice(found);
  }
  if (!stop.stop_requested()) return 0;
  std::fflush(stdout);
  std::_Exit(exit_code_of_interrupt());
}

}  // namespace

action add_tune(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "tune", "tries settings on files or URLs in turn, and prints those that raise the rate");
  auto a = std::make_shared<tune_arguments>();
  a->what.add_to(*command);
  command->option_defaults()->group("Measurement");
  command
      ->add_option("--streams", a->streams,
                   "files or objects read at once [files: all, at most 8; objects: 8]")
      ->type_name("FILES")
      ->check(in_range(1, 1'000'000));
  command->add_option("--seconds", a->seconds, "approximate time to spend")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(in_range(1.0, 86400.0));
  add_json(*command, a->json);
  command->footer("Example:\n  millrace tune /data/train/");
  return [a](const environment& e) { return tune(e, *a); };
}

}  // namespace millrace::cli
