#include "bench/load_bench.h"

#include <condition_variable>
#include <limits>
#include <mutex>

#include "bench/measure.h"
#include "engine/log.h"
#include "pipeline/batch.h"
#include "pipeline/group.h"
#include "pipeline/images/decode.h"
#include "pipeline/on_error.h"
#include "pipeline/prefetch.h"
#include "pipeline/shards.h"
#include "pipeline/shuffle.h"
#include "pipeline/untar.h"

namespace millrace {
namespace {

// The plan that a training program has.
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

// A consumer at work.
void work_until(steady_clock::time_point due) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable().wait_until(lock, due, [] { return false; });
}

double since(steady_clock::time_point then) {
  return std::chrono::duration<double>(steady_clock::now() - then).count();
}

// The next batch, of whichever epoch; nothing where two epochs in a row are empty.
std::optional<host_batch> next_of(loader<host_batch>& data) {
  auto next = data.next();
  return next ? std::move(next) : data.next();
}

// Where there is none, what was skipped is why.
void take_first(loader<host_batch>& data) {
  try {
    if (next_of(data)) return;
  } catch (const failure&) {
    for (const std::string& skipped : data.counts().first_skipped) log_notice(skipped);
    throw;
  }
  throw failure(error(errc::no_samples, "the shards gave no batch"));
}

// What happened between two looks.
void subtract(load_bench_report& r, const run_stats& before, const run_stats& after) {
  r.bytes = after.bytes_read - before.bytes_read;
  r.pool_threads = after.pool_threads;
  r.pool_busy = after.pool_busy - before.pool_busy;
  r.pool_cpu = after.pool_cpu - before.pool_cpu;
  r.spine_cpu = after.spine_cpu - before.spine_cpu;
  r.stages = after.stages;
  for (std::size_t i = 0; i < before.stages.size() && i < r.stages.size(); ++i) {
    stage_stats& s = r.stages[i];
    const stage_stats& b = before.stages[i];
    s.items -= b.items;
    s.bytes -= b.bytes;
    s.busy = std::max(0.0, s.busy - b.busy);
    s.waiting_input = std::max(0.0, s.waiting_input - b.waiting_input);
    s.waiting_output = std::max(0.0, s.waiting_output - b.waiting_output);
  }
}

load_limit limit_of(const load_bench_report& r) {
  constexpr double fed = 0.02;     // waits of a consumer that is not limited
  constexpr double nearly = 0.85;  // of a thread's time, or of the CPUs
  if (r.waited < fed * r.seconds) return load_limit::consumer;
  const double cpus = r.cpu_seconds / r.seconds / allowed_cpus();
  const double pool = r.pool_busy / (r.seconds * r.pool_threads);
  if (pool > nearly || (cpus > nearly && r.pool_cpu > r.spine_cpu)) return load_limit::decoding;
  if (r.spine_cpu > nearly * r.seconds) return load_limit::spine;
  return load_limit::reading;
}

}  // namespace

load_bench_report run_load_bench(const engine_options& how, const load_bench_options& what,
                                 const std::atomic<bool>& interrupted) {
  load_bench_report r;
  const auto started = steady_clock::now();
  engine eng(how);
  auto data = eng.run(plan_of(what));
  take_first(data);
  r.first_batch_s = since(started);
  const run_stats before = data.stats();
  const stopwatch_pair watch;
  const auto begun = steady_clock::now();
  double used = 0;
  double looked = 0;
  while (!interrupted && watch.seconds() < what.seconds) {
    const auto asked = steady_clock::now();
    const auto taken = next_of(data);
    if (!taken) break;
    r.waited += since(asked);
    r.images += taken->size();
    const double now = since(begun);
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
  subtract(r, before, data.stats());
  r.ledger = data.counts().summary();
  r.interrupted = interrupted;
  r.limit = limit_of(r);
  return r;
}

}  // namespace millrace
