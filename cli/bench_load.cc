#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/load_bench.h"
#include "cli/command.h"
#include "cli/interrupt.h"

namespace millrace::cli {
namespace {

struct arguments {
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
  }
  return "";
}

// What limits, and what would change it, in a line.
std::string verdict(const load_bench_report& r) {
  const double pool = 100 * r.pool_busy / (r.seconds * std::max(1, r.pool_threads));
  switch (r.limit) {
    case load_limit::consumer:
      return fmt::format(
          "the consumer limits: it waited {:.1f} % of the time, and {:.1f} cores "
          "sufficed; nothing here would make it faster",
          100 * r.waited / r.seconds, r.cpu_seconds / r.seconds);
    case load_limit::decoding:
      return fmt::format(
          "decoding limits: its {} threads are busy {:.0f} % of the time; more cores would change "
          "it, or shards with restart runs (millrace pack --from-shards ... --restart 4), or "
          "smaller stored images (pack --resize)",
          r.pool_threads, pool);
    case load_limit::spine:
      return fmt::format(
          "the spine limits: the I/O thread is busy {:.0f} % of the time; another "
          "process or loader would change it, or larger samples",
          100 * r.spine_cpu / r.seconds);
    case load_limit::reading:
      return fmt::format(
          "reading limits: {:.0f} MB/s come, and the decoding threads are busy {:.0f} % of the "
          "time; `millrace bench disk` or `bench http` says what the storage can give, and "
          "`millrace tune` with which settings; a cache (MILLRACE_CACHE) serves further epochs",
          static_cast<double>(r.bytes) / 1e6 / r.seconds, pool);
  }
  return "";
}

nlohmann::json to_json(const load_bench_report& r) {
  auto stages = nlohmann::json::array();
  for (const stage_stats& s : r.stages) {
    stages.push_back({{"name", s.name},
                      {"items", s.items},
                      {"bytes", s.bytes},
                      {"busy", s.busy},
                      {"waiting_input", s.waiting_input},
                      {"waiting_output", s.waiting_output}});
  }
  return {{"bytes", r.bytes},
          {"seconds", r.seconds},
          {"mb_per_s", static_cast<double>(r.bytes) / 1e6 / r.seconds},
          {"cpu_seconds", r.cpu_seconds},
          {"samples", r.images},
          {"samples_per_s", r.images_per_s()},
          {"cores", r.cpu_seconds / r.seconds},
          {"waiting", r.waited / r.seconds},
          {"first_batch_s", r.first_batch_s},
          {"outside_us", r.outside_us()},
          {"pool_threads", r.pool_threads},
          {"pool_used", r.pool_used},
          {"pool_busy", r.pool_busy},
          {"spine_cpu", r.spine_cpu},
          {"stages", stages},
          {"ledger", r.ledger},
          {"limit", name_of(r.limit)},
          {"verdict", verdict(r)},
          {"interrupted", r.interrupted}};
}

void print(const load_bench_report& r) {
  fmt::print("{:.0f} images/s, {:.0f} MB/s read, over {:.1f} s; first batch after {:.3f} s\n",
             r.images_per_s(), static_cast<double>(r.bytes) / 1e6 / r.seconds, r.seconds,
             r.first_batch_s);
  fmt::print(
      "{:.2f} cores: {:.2f} decode (on {:.1f} of {} threads), {:.2f} the rest, {:.1f} us of "
      "each image\n",
      r.cpu_seconds / r.seconds, r.pool_cpu / r.seconds, r.pool_used, r.pool_threads,
      (r.cpu_seconds - r.pool_cpu) / r.seconds, r.outside_us());
  fmt::print("consumer waited {:.1f} % of the time\n", 100 * r.waited / r.seconds);
  fmt::print("ledger: {}\n\n", r.ledger);
  fmt::print("{:<16}{:>12}{:>12}{:>10}{:>16}{:>16}\n", "stage", "items", "MB", "busy %",
             "waits input %", "waits output %");
  for (const stage_stats& s : r.stages) {
    fmt::print("{:<16}{:>12}{:>12.1f}{:>10.1f}{:>16.1f}{:>16.1f}\n", s.name, s.items,
               static_cast<double>(s.bytes) / 1e6, 100 * s.busy / r.seconds,
               100 * s.waiting_input / r.seconds, 100 * s.waiting_output / r.seconds);
  }
  fmt::print("\n{}\n", verdict(r));
}

int bench_load(const environment& e, arguments a) {
  a.what.urls = a.shards.urls(e);
  a.what.decode.train = !a.validation;
  if (!a.cache.empty()) {
    const auto bytes = parse_bytes(a.cache);
    if (!bytes) throw failure(bytes.error());
    a.what.cache_bytes = *bytes;
  }
  engine_options how = a.shards.engine(e);
  if (a.threads > 0) how.cpu_threads = a.threads;
  const auto report = run_load_bench(how, a.what, interrupted());
  if (report.images > 0 && a.json) fmt::print("{}\n", to_json(report).dump());
  if (report.images > 0 && !a.json) print(report);
  return report.interrupted ? 130 : 0;
}

}  // namespace

action add_bench_load(CLI::App& bench) {
  CLI::App* load = bench.add_subcommand(
      "load",
      "the whole loader with a consumer that only takes: what each stage does, what limits");
  auto a = std::make_shared<arguments>();
  a->shards.add_to(*load);
  load->add_option("--threads", a->threads, "that decode (as many as are needed)")
      ->check(CLI::Range(1, 1024));
  load->add_option("--batch", a->what.batch, "images of a batch")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  load->add_option("--size", a->what.decode.size, "of the output, in pixels: size x size")
      ->check(CLI::Range(1, 16384))
      ->capture_default_str();
  load->add_option("--shuffle", a->what.shuffle, "samples held by the shuffle; 0: none")
      ->capture_default_str();
  load->add_option("--lanes", a->what.lanes, "shards open at once (as training takes them)")
      ->check(CLI::Range(1, 4096));
  load->add_option("--seconds", a->what.seconds, "how long, from the first batch on")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  load->add_option("--rate", a->what.images_per_s,
                   "images/s that the consumer takes (as many as come)")
      ->check(CLI::PositiveNumber);
  load->add_option("--cache-decoded", a->cache, "bytes for decoded images of earlier epochs: 8G");
  load->add_flag("--validation", a->validation,
                 "resize and centre crop, in the place of random-resized-crop and flip");
  load->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return bench_load(e, *a); };
}

}  // namespace millrace::cli
