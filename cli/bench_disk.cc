#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/read_report.h"
#include "cli/storage_text.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/host.h"
#include "io/shard_urls.h"
#include "tools/bench/disk_bench.h"

namespace millrace::cli {
namespace {

struct bench_disk_arguments {
  disk_bench_options what;
  std::string random;
  bool direct = false;
  bool json = false;
};

// The thing that the rate measures, disk or cache, and the evidence.
std::string figure_text(const disk_bench_report& r) {
  const std::string before =
      r.cached_before < 0
          ? "it is not known whether the files were in the page cache"
          : fmt::format("{:.0f} % of the files were in the page cache", 100 * r.cached_before);
  const std::string how = fmt::format("{:.0f} % of the bytes bypassed it", 100 * r.direct_share());
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
  auto devices = nlohmann::json::array();
  for (const storage& s : r.devices) devices.push_back(storage_json(s));
  auto out = read_report_json(r);
  out.update(
      {{"streams", r.streams},
       {"streams_served", r.streams_served},
       {"files", r.files},
       {"file_bytes", r.file_bytes},
       {"reads", durations_json(r.counters.reads)},
       {"depth", r.depth},
       {"seeks_avoided", r.counters.seeks_avoided},
       {"gate_wait_seconds", r.counters.gate_wait_s},
       {"figure", r.figure_name()},
       {"direct_share", r.direct_share()},
       {"cached_before", r.cached_before < 0 ? nlohmann::json() : nlohmann::json(r.cached_before)},
       {"limit", r.limit(allowed_cpus())},
       {"io", r.io},
       {"devices", std::move(devices)}});
  return out;
}

void print(const disk_bench_report& r) {
  fmt::print("read      {}, {}, by {} through {}\n", counted(r.files, "file"),
             format_bytes(r.file_bytes), counted(static_cast<std::uint64_t>(r.streams), "stream"),
             r.io);
  for (const storage& s : r.devices) fmt::print("device    {}\n", storage_line(s));
  print_rate(r);
  fmt::print("figure    {}\n", figure_text(r));
  const latency_histogram& reads = r.counters.reads;
  fmt::print("reads     p50 {:.2f} ms, p99 {:.2f} ms, max {:.2f} ms; at most {} at once\n",
             1e3 * reads.percentile(0.5), 1e3 * reads.percentile(0.99), 1e3 * reads.most(),
             r.depth);
  if (r.streams_served < r.streams) {
    fmt::print("streams   {} of {} read nothing in this time\n", r.streams - r.streams_served,
               r.streams);
  }
  print_cpu(r);
  if (r.counters.gate_wait_s > 0 || r.counters.seeks_avoided > 0) {
    fmt::print("gate      all streams together waited {:.1f} s for turns; about {} seeks avoided\n",
               r.counters.gate_wait_s, r.counters.seeks_avoided);
  }
  fmt::print("limit     {}\n", r.limit(allowed_cpus()));
}

int bench_disk(const environment& e, const bench_disk_arguments& a) {
  engine_options how = engine_options::from(e.variables);
  disk_bench_options what = a.what;
  if (a.direct) how.source.direct = direct_reads::always;
  if (!a.random.empty()) {
    what.random_bytes = parse_bytes(a.random).value();
    how.source.chunk_bytes = std::min(how.source.chunk_bytes, what.random_bytes);
  }
  what.paths = paths_alone(a.what.paths, how.source, "bench disk reads local files",
                           "`millrace bench http` reads URLs");
  what.stop = stop_requested();  // before this, a signal ends it at once
  std::atomic<std::uint64_t> read = 0;
  what.read = &read;
  progress shown("bench disk", {.seconds = what.seconds}, [&] { return work_done{read, 0}; });
  const auto report = run_disk_bench(how, what);
  shown.end();
  if (a.json) {
    print_json(to_json(report));
  } else {
    print(report);
  }
  if (!report.interrupted) return 0;
  // A device that hangs would block the threads that wait for it.
  std::fflush(stdout);
  std::_Exit(exit_code_of_interrupt());
}

}  // namespace

action add_bench_disk(CLI::App& bench) {
  CLI::App* disk =
      bench.add_subcommand("disk", "measures disks: MB/s, latencies, CPU, and the bottleneck");
  auto a = std::make_shared<bench_disk_arguments>();
  disk->add_option("PATH", a->what.paths,
                   "files, brace ranges, '*', @FILE; folders stand for all files in them")
      ->required();
  disk->option_defaults()->group("Measurement");
  disk->add_option("--streams", a->what.streams, "files read at once [all, at most 8]")
      ->type_name("FILES")
      ->check(in_range(1, 1'000'000));
  disk->add_option("--seconds", a->what.seconds, "seconds to read for")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(in_range(0.1, 86400.0));
  disk->add_option("--random", a->random, "read this many bytes at a time, at random offsets: 128K")
      ->type_name("BYTES")
      ->check([](const std::string& text) {
        const auto size = parse_bytes(text);
        const bool fits = size && *size >= 4096 && *size % 4096 == 0;
        return fits ? std::string() : "'" + text + "' is not a multiple of 4K";
      });
  disk->add_flag("--direct", a->direct, "bypass the page cache (MILLRACE_DIRECT=on)");
  add_json(*disk, a->json);
  disk->footer("Example:\n  millrace bench disk /data/train/ --direct --seconds 30");
  return [a](const environment& e) { return bench_disk(e, *a); };
}

}  // namespace millrace::cli
