#include "io/source.h"

namespace millrace {

void source_counters::add(const source_counters& other) {
  bytes += other.bytes;
  requests += other.requests;
  retries += other.retries;
  resumed += other.resumed;
  stalls += other.stalls;
  hedges += other.hedges;
  hedges_won += other.hedges_won;
  wasted_bytes += other.wasted_bytes;
  direct_bytes += other.direct_bytes;
  seeks_avoided += other.seeks_avoided;
  cache_hits += other.cache_hits;
  cache_misses += other.cache_misses;
  cache_healed += other.cache_healed;
  gate_wait_s += other.gate_wait_s;
  memory_wait_s += other.memory_wait_s;
  most_depth += other.most_depth;
  first_byte_wait_s += other.first_byte_wait_s;
  reads.add(other.reads);
  first_bytes.add(other.first_bytes);
}

}  // namespace millrace
