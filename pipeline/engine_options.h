#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "engine/runtime.h"
#include "engine/settings.h"
#include "io/options.h"
#include "io/registry.h"

namespace millrace {

struct engine_options {
  // Decoding threads. 0: as few as keep the consumer from waiting, at most the CPUs that affinity
  // and the cgroup allow.
  int cpu_threads = 0;
  int io_threads = 1;            // that run the coroutines
  std::size_t memory_bytes = 0;  // budget of each run; 0: a quarter of the memory, at most 4 GiB
  io_backend io = io_backend::automatic;
  bool register_buffers = false;  // with io_uring, as far as locked memory goes
  source_options source = {};
  // Allocates batches; null: ordinary pages. Must outlive the engine, its loaders and every batch,
  // which gives its memory back to it.
  host_allocator* allocator = nullptr;
  // Adds sources of the program: called once for each I/O thread's registry.
  std::function<void(source_registry&)> add_sources = {};
  // Whether each skipped sample that the ledger lists is told, as a notice (log.h). Without, as the
  // further ones are with it, for log_level::debug alone: for programs that list them on their own.
  bool tell_skipped = true;

  static const option_list<engine_options>& variables();
  // For this project's programs, which list what was skipped and set the level of the log. Throws
  // `failure` (bad_setting) for a text that is not what its variable asks for.
  static engine_options from(const settings& s);
  // Options from the MILLRACE_ variables and those of proxies and object stores (README.md). An
  // engine made with other options reads no variable. Sets the level of the log where MILLRACE_LOG
  // is set. Throws `failure` (bad_setting) for a variable that is unknown or out of range.
  static engine_options from_environment();
};

// Every variable that millrace knows, in the order in which `millrace env` lists them.
const std::vector<setting>& all_settings();

// Those of `environment` (settings.h), and those of proxies and object stores.
result<settings> read_settings(const char* const* environment);

}  // namespace millrace
