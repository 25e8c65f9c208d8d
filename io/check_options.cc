#include "io/check_options.h"

#include <algorithm>

#include "engine/check_option.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds longest = 24h;

void check_timeout(std::string_view name, std::chrono::milliseconds value) {
  check_option(name, value, 1ms, longest);
}

void check(const http_options& o) {
  check_timeout("http_timeouts.connect", o.timeouts.connect);
  check_timeout("http_timeouts.tls", o.timeouts.tls);
  check_timeout("http_timeouts.first_byte", o.timeouts.first_byte);
  check_timeout("http_timeouts.progress", o.timeouts.progress);
  check_option("http_options.attempts", o.attempts, 1, 1000);
  check_option("http_options.backoff", o.backoff, 0ms, longest);
  check_option("http_options.connections", o.connections, 1, 4096);
  check_option("http_options.idle", o.idle, 0ms, longest);
  check_option_or_0("http_options.receive_buffer_bytes", o.receive_buffer_bytes, 4_KiB, 1_GiB);
  if (o.split) check_option("http_options.split", *o.split, 1, 1024);
  check_option_or_0("http_options.part_bytes", o.part_bytes, 4_KiB, 1_GiB);
  check_option("http_options.hedge", o.hedge, 0, 1);
}

}  // namespace

void check(const source_options& o) {
  check_option("source_options.chunk_bytes", o.chunk_bytes, 4_KiB, 64_MiB);
  check_option("source_options.read_ahead", o.read_ahead, 1, 1024);
  check_option("source_options.read_depth", o.read_depth, 0, 4096);
  check_option("source_options.spindles", o.spindles, 0, 1024);
  if (o.serialize) check_option("source_options.serialize", *o.serialize, 0, 1024);
  check_option_or_0("source_options.extent_bytes", o.extent_bytes, 64_KiB, 1_GiB);
  check_option("source_options.gate_patience", o.gate_patience, 10ms, longest);
  check_timeout("source_options.read_timeout", o.read_timeout);
  check_option("source_options.max_expansion", o.max_expansion, 1, 1'000'000);
  check_option("cache_options.patience", o.cache.patience, 10ms, longest);
  check(o.http);
}

}  // namespace millrace
