#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/memory_source.h"
#include "pipeline/engine.h"

namespace millrace::testing {

// An engine that also reads "memory:NAME" from `store`.
inline engine_options with_memory_store(std::shared_ptr<memory_store> store, int cpu_threads = 2,
                                        std::size_t memory = 256_MiB) {
  engine_options o;
  o.cpu_threads = cpu_threads;
  o.memory_bytes = memory;
  o.source.chunk_bytes = 64_KiB;
  o.source.http.backoff = std::chrono::milliseconds(1);
  o.add_sources = [store = std::move(store)](source_registry& sources) {
    sources.add("memory", memory_source_factory(store));
  };
  return o;
}

// The keys of one epoch.
inline std::vector<std::string> keys_of_epoch(loader<sample>& data) {
  std::vector<std::string> keys;
  for (const sample& s : data) keys.push_back(s.key);
  return keys;
}
inline std::vector<std::string> keys_of_epoch(loader<host_batch>& data) {
  std::vector<std::string> keys;
  for (const host_batch& b : data) keys.insert(keys.end(), b.keys.begin(), b.keys.end());
  return keys;
}

}  // namespace millrace::testing
