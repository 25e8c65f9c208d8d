#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/engine.h"
#include "pipeline/images/sample_decoder.h"

namespace millrace {

struct load_bench_options {
  std::vector<std::string> urls;
  decode_options decode;
  int batch = 64;               // images
  std::size_t shuffle = 0;      // samples held
  int lanes = 0;                // 0: as training takes them
  double seconds = 10;          // from the first batch on
  std::size_t cache_bytes = 0;  // of decoded images that are kept
  double images_per_s = 0;      // that the consumer takes; 0: as many as come
};

// What limits a loader.
enum class load_limit : std::uint8_t { consumer, decoding, spine, reading };

// The loader between its first batch and its end, with a consumer that does nothing but take.
struct load_bench_report {
  std::uint64_t images = 0;
  std::uint64_t bytes = 0;  // read
  double seconds = 0;
  double cpu_seconds = 0;    // of the process
  double waited = 0;         // seconds of the consumer
  double first_batch_s = 0;  // from the start to the first batch
  std::vector<stage_stats> stages;
  int pool_threads = 0;  // that the pool has
  double pool_used = 0;  // of them, that took work: the mean
  double pool_busy = 0;  // thread-seconds
  double pool_cpu = 0;
  double spine_cpu = 0;
  std::string ledger;  // its summary
  bool interrupted = false;
  load_limit limit = load_limit::consumer;

  double images_per_s() const { return static_cast<double>(images) / seconds; }
  // CPU time of one image outside the pool, in microseconds.
  double outside_us() const { return 1e6 * (cpu_seconds - pool_cpu) / static_cast<double>(images); }
};

// Blocks. Goes through the shards again and again. Throws `failure`: no_samples where no batch
// comes.
load_bench_report run_load_bench(const engine_options& how, const load_bench_options& what,
                                 const std::atomic<bool>& interrupted);

}  // namespace millrace
