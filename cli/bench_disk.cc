#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bench/disk_bench.h"
#include "bench/plot.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/storage_text.h"

namespace millrace::cli {
namespace {

struct arguments {
  disk_bench_options what;
  std::string random;
  bool direct = false;
  bool json = false;
};

std::string_view name(disk_bench_report::kind figure) {
  switch (figure) {
    case disk_bench_report::kind::disk:
      return "disk";
    case disk_bench_report::kind::page_cache:
      return "page cache";
    case disk_bench_report::kind::mixed:
      return "mixed";
    case disk_bench_report::kind::memory:
      return "memory";
  }
  return "";
}

// What the rate is a rate of, and how that is known.
std::string figure_text(const disk_bench_report& r) {
  const std::string before =
      r.cached_before < 0
          ? "whether the files were in the page cache is not known"
          : fmt::format("{:.0f} % of the files was in the page cache", 100 * r.cached_before);
  const std::string how = fmt::format("{:.0f} % was read past it", 100 * r.direct_share);
  switch (r.figure()) {
    case disk_bench_report::kind::disk:
      return fmt::format("the disk's: {} before, {}", before, how);
    case disk_bench_report::kind::page_cache:
      return fmt::format(
          "NOT the disk's but the page cache's: {} before, {}; --direct reads the "
          "disk",
          before, how);
    case disk_bench_report::kind::mixed:
      return fmt::format(
          "NOT the disk's alone: {} before, {}, and the files were read {:.1f} "
          "times; --direct reads the disk",
          before, how, static_cast<double>(r.bytes) / static_cast<double>(r.file_bytes));
    case disk_bench_report::kind::memory:
      return "NOT a disk's: the files are in memory (tmpfs)";
  }
  return "";
}

nlohmann::json to_json(const disk_bench_report& r) {
  const double gb = std::max(1e-9, static_cast<double>(r.bytes) / 1e9);
  auto devices = nlohmann::json::array();
  for (const storage& s : r.devices) devices.push_back(storage_json(s));
  return {
      {"bytes", r.bytes},
      {"seconds", r.seconds},
      {"mb_per_s", r.mb_per_s()},
      {"cpu_seconds", r.cpu_seconds},
      {"cpu_s_per_gb", r.cpu_seconds / gb},
      {"streams", r.streams},
      {"streams_served", r.streams_served},
      {"files", r.files},
      {"file_bytes", r.file_bytes},
      {"reads",
       {{"count", r.reads.count()},
        {"p50_ms", 1e3 * r.reads.percentile(0.5)},
        {"p99_ms", 1e3 * r.reads.percentile(0.99)},
        {"max_ms", 1e3 * r.reads.most()}}},
      {"depth", r.depth},
      {"seeks_avoided", r.seeks_avoided},
      {"gate_wait_seconds", r.gate_wait_s},
      {"memory_wait_seconds", r.memory_wait_s},
      {"figure", name(r.figure())},
      {"direct_share", r.direct_share},
      {"cached_before", r.cached_before < 0 ? nlohmann::json() : nlohmann::json(r.cached_before)},
      {"limit", r.limit(allowed_cpus())},
      {"io", r.io},
      {"interval_seconds", r.interval_s},
      {"mb_per_s_over_time", r.rate_over_time},
      {"devices", std::move(devices)},
      {"interrupted", r.interrupted}};
}

void print(const disk_bench_report& r) {
  const double gb = std::max(1e-9, static_cast<double>(r.bytes) / 1e9);
  constexpr std::size_t plot_columns = 50;
  fmt::print("read      {} files, {}, by {} streams through {}\n", r.files,
             format_bytes(r.file_bytes), r.streams, r.io);
  for (const storage& s : r.devices) fmt::print("device    {}\n", storage_line(s));
  fmt::print("rate      {:.1f} MB/s: {:.2f} GB in {:.2f} s\n", r.mb_per_s(), gb, r.seconds);
  if (!r.rate_over_time.empty()) {
    fmt::print("          {} to {:.0f} MB/s, {:.1f} s in all\n",
               sparkline(r.rate_over_time, plot_columns),
               *std::ranges::max_element(r.rate_over_time), r.seconds);
  }
  fmt::print("figure    {}\n", figure_text(r));
  fmt::print("reads     p50 {:.2f} ms, p99 {:.2f} ms, max {:.2f} ms; {} at once at most\n",
             1e3 * r.reads.percentile(0.5), 1e3 * r.reads.percentile(0.99), 1e3 * r.reads.most(),
             r.depth);
  if (r.streams_served < r.streams) {
    fmt::print("streams   {} of {} got nothing in this time\n", r.streams - r.streams_served,
               r.streams);
  }
  fmt::print("CPU       {:.3f} s/GB\n", r.cpu_seconds / gb);
  if (r.gate_wait_s > 0 || r.seeks_avoided > 0) {
    fmt::print("gate      {:.1f} s waited for turns by all streams; about {} seeks avoided\n",
               r.gate_wait_s, r.seeks_avoided);
  }
  fmt::print("limit     {}\n", r.limit(allowed_cpus()));
}

int bench_disk(const environment& e, const arguments& a) {
  engine_options how = engine_options::from(e.variables);
  disk_bench_options what = a.what;
  if (a.direct) how.source.direct = direct_reads::always;
  if (!a.random.empty()) {
    what.random_bytes = parse_bytes(a.random).value();
    how.source.chunk_bytes = std::min(how.source.chunk_bytes, what.random_bytes);
  }
  const auto report = run_disk_bench(how, what, interrupted());
  if (a.json) {
    fmt::print("{}\n", to_json(report).dump());
  } else {
    print(report);
  }
  if (!report.interrupted) return 0;
  // A device that hangs would hold back the threads that wait for it.
  std::fflush(stdout);
  std::_Exit(130);
}

}  // namespace

action add_bench_disk(CLI::App& bench) {
  CLI::App* disk = bench.add_subcommand("disk", "MB/s, latencies, CPU, and what limits them");
  auto a = std::make_shared<arguments>();
  disk->add_option("PATH", a->what.paths, "files, and folders for all that is in them")
      ->required()
      ->check(CLI::ExistingPath);
  disk->add_option("--streams", a->what.streams, "files read at once (one for each, 8 at most)")
      ->check(CLI::Range(1, 1'000'000));
  disk->add_option("--seconds", a->what.seconds, "how long (10)")->check(CLI::Range(0.1, 86400.0));
  disk->add_option("--random", a->random, "read extents of so many bytes at random places: 128K")
      ->check([](const std::string& text) {
        const auto size = parse_bytes(text);
        const bool fits = size && *size >= 4096 && *size % 4096 == 0;
        return fits ? std::string() : "'" + text + "' is not a multiple of 4K";
      });
  disk->add_flag("--direct", a->direct, "past the page cache (MILLRACE_DIRECT=on)");
  disk->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return bench_disk(e, *a); };
}

}  // namespace millrace::cli
