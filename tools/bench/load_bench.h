#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "pipeline/images/sample_decoder.h"
#include "pipeline/run/engine.h"

namespace millrace {

struct load_bench_options {
  std::vector<std::string> urls;
  decode_options decode;
  int batch = 64;                               // images
  std::size_t shuffle = 0;                      // samples held
  int lanes = 0;                                // 0: as in training
  double seconds = 10;                          // from the first batch on
  std::size_t cache_bytes = 0;                  // of decoded images that are kept
  double images_per_s = 0;                      // taken by the consumer; 0: unlimited
  std::stop_token stop = {};                    // ends it even while it waits for a batch
  std::atomic<std::uint64_t>* taken = nullptr;  // images; for progress, may be null
};

// The bottleneck of a run. `host`: its threads have work, but wait for a CPU.
enum class load_limit : std::uint8_t { consumer, decoding, spine, reading, host };

// The loader's figures from its first batch to its end, with a consumer that does nothing.
struct load_bench_report {
  std::uint64_t images = 0;
  double seconds = 0;
  double cpu_seconds = 0;     // of the process
  double waited = 0;          // seconds, by the consumer, including an unfinished last wait
  double first_batch_s = 0;   // from the start to the first batch
  run_stats stats;            // since the first batch
  double pool_used = 0;       // the mean number of threads that took work
  std::string ledger;         // its summary
  std::string first_skipped;  // the message; empty if nothing was skipped
  bool interrupted = false;
  load_limit limit = load_limit::consumer;

  // The fraction of the time with work for the decoding threads that they were on a CPU.
  double pool_on_cpu() const {
    return stats.pool_busy > 0 ? std::min(1.0, stats.pool_cpu / stats.pool_busy) : 1;
  }
  // Bytes read, in 10^6 per second.
  double mb_per_s() const { return static_cast<double>(stats.sources.bytes) / 1e6 / seconds; }
  double images_per_s() const { return static_cast<double>(images) / seconds; }
  // CPU time outside the pool, in seconds. The two clocks are read one after the other.
  double cpu_outside() const { return std::max(0.0, cpu_seconds - stats.pool_cpu); }
  // The same of one image, in microseconds.
  double outside_us() const {
    return images == 0 ? 0 : 1e6 * cpu_outside() / static_cast<double>(images);
  }
};

// The bottleneck that a finished report shows, with a consumer limited to `images_per_s` (0: not
// limited). Pure.
load_limit limit_of(const load_bench_report& r, double images_per_s);

// Blocks. Reads the shards repeatedly until time is up, even if no batch comes. Throws `failure`:
// the first shard's error if none can be read, no_samples if no batch comes. If it is stopped
// before that, `seconds` is 0.
load_bench_report run_load_bench(const engine_options& how, const load_bench_options& what);

}  // namespace millrace
