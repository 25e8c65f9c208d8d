#pragma once

#include <cstdint>
#include <string_view>

#include "engine/host/stats.h"

namespace millrace {

// Counters of sources. One I/O thread only; a copy is a snapshot.
struct source_counters {
  std::uint64_t bytes = 0;          // read from files and servers
  std::uint64_t requests = 0;       // files opened, and requests sent
  std::uint64_t retries = 0;        // transfers resumed or retried
  std::uint64_t resumed = 0;        // part of retries: in the middle of a transfer
  std::uint64_t stalls = 0;         // part of retries: a server that gave nothing in time
  std::uint64_t hedges = 0;         // parts that were requested a second time
  std::uint64_t hedges_won = 0;     // part of hedges: the second request was faster
  std::uint64_t wasted_bytes = 0;   // received and not used
  std::uint64_t direct_bytes = 0;   // part of bytes: past the page cache
  std::uint64_t seeks_avoided = 0;  // at gates; see docs/decisions.md, 15
  std::uint64_t cache_hits = 0;     // objects read from the cache
  std::uint64_t cache_misses = 0;   // objects fetched into it
  std::uint64_t cache_healed = 0;   // objects fetched again because their copy was damaged
  double gate_wait_s = 0;           // seconds of all readers, summed
  double memory_wait_s = 0;         // seconds of all readers, summed
  double first_byte_wait_s = 0;     // from requests to the heads of their responses, summed
  std::uint64_t most_depth = 0;     // the most chunks under way at once on a device
  latency_histogram reads;          // durations of reads of a chunk
  latency_histogram first_bytes;    // durations from request to response

  // Way to combine a figure of several sources.
  enum class total : std::uint8_t { sum, greatest };
  // Calls f(name, member, total) for each figure but the histograms: its name in reports, which
  // programs read (docs/compatibility.md), a pointer to the member, and how it is put together.
  template <class F>
  static constexpr void each(F&& f);

  // Adds the figures of another one.
  void add(const source_counters& other);
  // Returns the counts made after `before`, an earlier snapshot. Maximums, and the longest duration
  // of a histogram, are those of the whole time.
  source_counters since(const source_counters& before) const;
};

template <class F>
constexpr void source_counters::each(F&& f) {
  using c = source_counters;
  f("bytes_read", &c::bytes, total::sum);
  f("requests", &c::requests, total::sum);
  f("retries", &c::retries, total::sum);
  f("resumed", &c::resumed, total::sum);
  f("stalls", &c::stalls, total::sum);
  f("hedges", &c::hedges, total::sum);
  f("hedges_won", &c::hedges_won, total::sum);
  f("wasted_bytes", &c::wasted_bytes, total::sum);
  f("direct_bytes", &c::direct_bytes, total::sum);
  f("seeks_avoided", &c::seeks_avoided, total::sum);
  f("cache_hits", &c::cache_hits, total::sum);
  f("cache_misses", &c::cache_misses, total::sum);
  f("cache_healed", &c::cache_healed, total::sum);
  f("gate_wait_seconds", &c::gate_wait_s, total::sum);
  f("memory_wait_seconds", &c::memory_wait_s, total::sum);
  f("first_byte_wait_seconds", &c::first_byte_wait_s, total::sum);
  f("most_depth", &c::most_depth, total::greatest);
}

}  // namespace millrace
