#include "tools/bench/load_bench.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include "engine/host/host.h"
#include "engine/host/log.h"
#include "engine/host/start_thread.h"
#include "engine/threads/worker_pool.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/untar.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/shards/shards.h"
#include "pipeline/stages/batch.h"
#include "pipeline/stages/decode.h"
#include "pipeline/stages/on_error.h"
#include "pipeline/stages/prefetch.h"
#include "pipeline/stages/shuffle.h"
#include "tools/bench/measure.h"

namespace millrace {
namespace {

// The plan of a training program.
plan<host_batch> plan_of(const load_bench_options& what) {
  auto samples = shards(what.urls, {.seed = what.decode.seed,
                                    .lanes = what.lanes,
                                    .epochs = std::numeric_limits<std::int32_t>::max()}) |
                 untar() | group_by_key();
  if (what.shuffle > 0) {
    samples = samples | shuffle({.samples = what.shuffle, .seed = what.decode.seed});
  }
  decode_options decode = what.decode;
  if (what.cache_bytes > 0) decode.cache = cache_decoded({.bytes = what.cache_bytes});
  return samples | decode_jpeg(decode) | on_error(skip_errors()) | batch({.size = what.batch}) |
         prefetch(2);
}

// Simulates the consumer's work.
void work_until(steady_clock::time_point due) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable().wait_until(lock, due, [] { return false; });
}

// The next batch, of any epoch; nullopt after two empty epochs in a row.
std::optional<host_batch> next_of(loader<host_batch>& data) {
  auto next = data.next();
  return next ? std::move(next) : data.next();
}

// The error of the first skipped sample; nullopt if none was skipped.
std::optional<error> first_skipped(const ledger& counts) {
  if (counts.first_skipped.empty()) return std::nullopt;
  const std::string& message = counts.first_skipped.front();
  for (const auto& [kind, count] : counts.skipped) {
    const std::string label = std::string(kind_name(kind)) + ": ";
    if (message.starts_with(label)) return error(kind, message.substr(label.size()));
  }
  return std::nullopt;
}

// Takes the first batch; if there is none, throws the first skipped error.
void take_first(loader<host_batch>& data) {
  try {
    if (next_of(data)) return;
  } catch (const failure& f) {
    if (f.kind() != errc::no_samples) throw;
  }
  if (const auto why = first_skipped(data.counts())) throw failure(*why);
  throw failure(error(errc::no_samples, "the shards gave no batch"));
}

// For a thread: stops the run when time is up, unless the thread is asked to stop before.
std::function<void(const std::stop_token&)> clock_of(loader<host_batch>& data, double seconds) {
  const auto due = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                             std::chrono::duration<double>(seconds));
  return [&data, due](const std::stop_token& over) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any().wait_until(lock, over, due, [] { return false; });
    if (!over.stop_requested()) data.stop();
  };
}

// The next batch; nullopt at the end, or if the run is stopped.
std::optional<host_batch> next_unless_stopped(loader<host_batch>& data) {
  try {
    return next_of(data);
  } catch (const failure& f) {
    if (f.kind() != errc::stopped) throw;
    return std::nullopt;
  }
}

// Seconds that the decoding stage waited for upstream stages.
double waited_for_input(const load_bench_report& r) {
  const auto decoding = std::ranges::find(r.stats.stages, "decode_jpeg", &stage_stats::name);
  return decoding == r.stats.stages.end() ? 0 : decoding->waiting_input;
}

}  // namespace

load_limit limit_of(const load_bench_report& r, double images_per_s) {
  constexpr double fed = 0.02;     // waits of a consumer that is the bottleneck
  constexpr double paced = 0.98;   // of the consumer's rate
  constexpr double nearly = 0.85;  // of a thread's time, or of the CPUs
  constexpr double taken = 0.7;    // of a CPU, when others use the rest
  constexpr double idle = 0.4;     // of a pool that is not the bottleneck
  if (r.waited < fed * r.seconds) return load_limit::consumer;
  if (images_per_s > 0 && r.images_per_s() >= paced * images_per_s) return load_limit::consumer;
  const bool is_taken = r.pool_on_cpu() < taken;
  const double cpus = r.cpu_seconds / r.seconds / allowed_cpus();
  const double pool = r.stats.pool_busy / (r.seconds * r.stats.pool_threads);
  if (pool > nearly) return is_taken ? load_limit::host : load_limit::decoding;
  if (cpus > nearly && r.stats.pool_cpu > r.stats.spine_cpu) return load_limit::decoding;
  if (r.stats.spine_cpu > nearly * r.seconds) return load_limit::spine;
  if (waited_for_input(r) > r.seconds / 2) return load_limit::reading;
  // Nothing was busy, and only CPUs were waited for.
  return is_taken || pool < idle ? load_limit::host : load_limit::decoding;
}

load_bench_report run_load_bench(const engine_options& how, const load_bench_options& what) {
  load_bench_report r;
  const auto started = steady_clock::now();
  engine eng(how);
  auto data = eng.run(plan_of(what));
  const std::stop_callback stopping(what.stop, [&] { data.stop(); });
  try {
    take_first(data);
  } catch (const failure& f) {
    if (f.kind() != errc::stopped) throw;
    r.interrupted = true;
    return r;
  }
  r.first_batch_s = seconds_since(started);
  const run_stats before = data.stats();
  const stopwatch_pair watch;
  const auto begun = steady_clock::now();
  double used = 0;
  double looked = 0;
  const std::jthread clock = start_joined_thread("mr-bench-clock", clock_of(data, what.seconds));
  while (!what.stop.stop_requested() && watch.seconds() < what.seconds) {
    const auto asked = steady_clock::now();
    const auto taken = next_unless_stopped(data);
    r.waited += seconds_since(asked);
    if (!taken) break;
    r.images += taken->size();
    if (what.taken != nullptr) *what.taken = r.images;
    const double now = seconds_since(begun);
    used += eng.threads().cpu().used() * (now - looked);
    looked = now;
    if (what.images_per_s <= 0) continue;
    const double due = static_cast<double>(r.images) / what.images_per_s;
    work_until(begun + std::chrono::duration_cast<steady_clock::duration>(
                           std::chrono::duration<double>(due)));
  }
  r.seconds = watch.seconds();
  r.cpu_seconds = watch.cpu_seconds();
  r.pool_used = looked > 0 ? used / looked : 0;
  r.stats = data.stats().since(before);
  const ledger counts = data.counts();
  r.ledger = counts.summary();
  r.first_skipped = counts.first_skipped.empty() ? "" : counts.first_skipped.front();
  r.interrupted = what.stop.stop_requested();
  r.limit = limit_of(r, what.images_per_s);
  return r;
}

}  // namespace millrace
