#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/host.h"
#include "pipeline/shards/shards.h"
#include "tools/bench/load_bench.h"

namespace millrace::cli {
namespace {

struct bench_load_arguments {
  shard_arguments shards;
  load_bench_options what;
  int threads = 0;
  std::string cache;
  bool validation = false;
  bool json = false;
};

const char* name_of(load_limit limit) {
  switch (limit) {
    case load_limit::consumer:
      return "consumer";
    case load_limit::decoding:
      return "decoding";
    case load_limit::spine:
      return "spine";
    case load_limit::reading:
      return "reading";
    case load_limit::host:
      return "host";
  }
  return "";
}

// How busy decoding is, where it is the bottleneck: the percentage is of the time of all threads.
// Threads that are at work for less than nearly all of theirs lack cores, or images to decode at
// once.
std::string busy_decoding(const load_bench_report& r, double pool) {
  constexpr double nearly = 85;
  const int threads = r.stats.pool_threads;
  std::string out = threads == 1 ? fmt::format("its thread decodes for {:.0f} % of its time", pool)
                                 : fmt::format(
                                       "its {} threads decode for {:.0f} % of their time (the mean "
                                       "of the threads)",
                                       threads, pool);
  const double cores = r.cpu_seconds / r.seconds;
  if (pool > nearly) return out;
  if (100 * cores > nearly * allowed_cpus()) {
    return out + fmt::format(", and the process keeps {:.1f} of {} busy", cores,
                             counted(static_cast<std::uint64_t>(allowed_cpus()), "core"));
  }
  return out + fmt::format(
                   ", the I/O thread is busy for {:.0f} % of its own, and images to decode "
                   "are seldom waited for",
                   100 * r.stats.spine_cpu / r.seconds);
}

// The bottleneck, and what would remove it, in one line.
std::string verdict(const load_bench_report& r) {
  const double pool = 100 * r.stats.pool_busy / (r.seconds * std::max(1, r.stats.pool_threads));
  switch (r.limit) {
    case load_limit::consumer:
      return fmt::format(
          "limited by the consumer: it waited {:.1f} % of the time, and {:.1f} cores were enough; "
          "a "
          "faster loader would change nothing",
          100 * r.waited / r.seconds, r.cpu_seconds / r.seconds);
    case load_limit::decoding:
      return fmt::format(
          "limited by decoding: {}; more cores would help, "
          "or shards with restart runs (millrace pack --from-shards ... --restart 4), or "
          "smaller stored images (pack --resize)",
          busy_decoding(r, pool));
    case load_limit::spine:
      return fmt::format(
          "limited by the I/O thread: it is busy for {:.0f} % of its time; another process or "
          "loader "
          "would help, or larger samples",
          100 * r.stats.spine_cpu / r.seconds);
    case load_limit::reading:
      return fmt::format(
          "limited by reading: {:.0f} MB/s arrive, and the decoding threads are busy for {:.0f} % "
          "of their time; `millrace bench disk` or `bench http` measures the storage, and "
          "`millrace tune` finds the best settings; a cache (MILLRACE_CACHE) serves later epochs",
          r.mb_per_s(), pool);
    case load_limit::host:
      if (r.pool_on_cpu() > 0.7) {
        return fmt::format(
            "limited by the host: not by the decoding threads (busy for {:.0f} % of their time), "
            "the I/O thread ({:.0f} %) or reading; other programs or virtual machines use its "
            "CPUs, so "
            "measure again without them",
            pool, 100 * r.stats.spine_cpu / r.seconds);
      }
      return fmt::format(
          "limited by the host: the decoding threads had a CPU for {:.0f} % of the time in which "
          "they "
          "had work; other programs or virtual machines use its CPUs, so measure again without "
          "them",
          100 * r.pool_on_cpu());
  }
  return "";
}

nlohmann::json to_json(const load_bench_report& r) {
  auto stages = nlohmann::json::array();
  for (const stage_stats& s : r.stats.stages) {
    stages.push_back({{"name", s.name},
                      {"items", s.items},
                      {"bytes", s.bytes},
                      {"busy", s.busy},
                      {"waiting_input", s.waiting_input},
                      {"waiting_output", s.waiting_output}});
  }
  return {{"bytes", r.stats.sources.bytes},
          {"seconds", r.seconds},
          {"mb_per_s", r.mb_per_s()},
          {"cpu_seconds", r.cpu_seconds},
          {"samples", r.images},
          {"samples_per_s", r.images_per_s()},
          {"cores", r.cpu_seconds / r.seconds},
          {"waiting", r.waited / r.seconds},
          {"first_batch_s", r.first_batch_s},
          {"outside_us", r.outside_us()},
          {"pool_threads", r.stats.pool_threads},
          {"pool_used", r.pool_used},
          {"pool_busy", r.stats.pool_busy},
          {"spine_cpu", r.stats.spine_cpu},
          {"stages", stages},
          {"sources", sources_json(r.stats.sources)},
          {"ledger", r.ledger},
          {"first_skipped", r.first_skipped},
          {"limit", name_of(r.limit)},
          {"verdict", verdict(r)},
          {"interrupted", r.interrupted}};
}

void print(const load_bench_report& r) {
  fmt::print("{:.0f} images/s, {:.0f} MB/s read, over {}; first batch after {}\n", r.images_per_s(),
             r.mb_per_s(), time_text(r.seconds), time_text(r.first_batch_s));
  fmt::print(
      "{:.2f} cores: {:.2f} for decoding (on {:.1f} of {}), {:.2f} for the rest, {:.1f} us per "
      "image\n",
      r.cpu_seconds / r.seconds, r.stats.pool_cpu / r.seconds, r.pool_used,
      counted(static_cast<std::uint64_t>(r.stats.pool_threads), "thread"),
      r.cpu_outside() / r.seconds, r.outside_us());
  fmt::print("consumer waited {:.1f} % of the time\n", 100 * r.waited / r.seconds);
  fmt::print("ledger: {}\n", r.ledger);
  if (!r.first_skipped.empty()) fmt::print("first skipped: {}\n", r.first_skipped);
  fmt::print("\n");
  fmt::print("{:<16}{:>12}{:>12}{:>18}{:>18}{:>18}\n", "stage", "items", "read", "busy",
             "waits for input", "waits for output");
  const auto part = [&](double seconds) {
    return fmt::format("{} {:>5.1f} %", time_text(seconds), 100 * seconds / r.seconds);
  };
  for (const stage_stats& s : r.stats.stages) {
    fmt::print("{:<16}{:>12}{:>12}{:>18}{:>18}{:>18}\n", s.name, s.items, format_bytes(s.bytes),
               part(s.busy), part(s.waiting_input), part(s.waiting_output));
  }
  fmt::print("\n{}\n", verdict(r));
}

int bench_load(const environment& e, bench_load_arguments a) {
  a.what.urls = a.shards.urls(e);
  a.what.decode.train = !a.validation;
  if (!a.cache.empty()) {
    const auto bytes = parse_bytes(a.cache);
    if (!bytes) throw failure(bytes.error());
    a.what.cache_bytes = *bytes;
  }
  engine_options how = a.shards.engine(e);
  if (a.threads > 0) how.cpu_threads = a.threads;
  a.what.stop = stop_requested();
  std::atomic<std::uint64_t> taken = 0;
  a.what.taken = &taken;
  progress shown("bench load", {.noun = "image", .seconds = a.what.seconds},
                 [&] { return work_done{0, taken}; });
  const auto report = run_load_bench(how, a.what);
  shown.end();
  return end_of_bench(
      report.seconds > 0, report.interrupted, a.json, [&] { return to_json(report); },
      [&] { print(report); });
}

}  // namespace

action add_bench_load(CLI::App& bench) {
  CLI::App* load = bench.add_subcommand(
      "load",
      "runs the whole loader with a consumer that does nothing: the rate of each stage, the "
      "bottleneck");
  auto a = std::make_shared<bench_load_arguments>();
  a->shards.add_to(*load);
  load->option_defaults()->group("Loader");
  load->add_option("--threads", a->threads, "decoding threads [as many as needed]")
      ->check(in_range(1, 1024));
  load->add_option("--batch,--batch-size", a->what.batch, "images in a batch")
      ->type_name("IMAGES")
      ->check(in_range(1, 1 << 20))
      ->capture_default_str();
  load->add_option("--size", a->what.decode.size, "width and height of decoded images in pixels")
      ->type_name("PIXELS")
      ->check(in_range(1, 16384))
      ->capture_default_str();
  load->add_option("--shuffle", a->what.shuffle, "samples that the shuffle holds; 0: no shuffle")
      ->type_name("SAMPLES")
      ->check(in_range(0, 100'000'000))
      ->capture_default_str();
  load->add_option("--lanes", a->what.lanes,
                   fmt::format("shards open at once [{}]", shard_list_options().lane_count()))
      ->check(in_range(1, 4096));
  load->add_option("--seconds", a->what.seconds, "seconds to measure, starting at the first batch")
      ->type_name("SECONDS")
      ->group("Measurement")
      ->check(above_zero())
      ->capture_default_str();
  load->add_option("--rate", a->what.images_per_s, "images/s that the consumer takes [unlimited]")
      ->type_name("IMAGES/S")
      ->group("Measurement")
      ->check(above_zero());
  load->add_option("--cache-decoded", a->cache,
                   "memory for decoded images of earlier epochs: 8G [none]")
      ->type_name("BYTES");
  load->add_flag("--validation", a->validation,
                 "resize and centre crop instead of random-resized-crop and flip");
  add_json(*load, a->json);
  load->footer(
      "Example:\n  millrace bench load train-{000000..000009}.tar --batch 256 --shuffle 10000");
  return [a](const environment& e) { return bench_load(e, *a); };
}

}  // namespace millrace::cli
