#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "engine/base/settings.h"
#include "engine/threads/runtime.h"
#include "io/options.h"
#include "io/registry.h"

namespace millrace {

// Options of an engine. Ranges are those of the variables (docs/variables.md). A cache's folder
// that is a file, or a URL, is refused as well.
struct engine_options {
  // Decoding threads. 0: as few as keep the consumer from waiting, at most the CPUs that affinity
  // and the cgroup allow.
  int cpu_threads = 0;
  int io_threads = 1;            // that run the coroutines; a run uses one
  std::size_t memory_bytes = 0;  // budget of each run; 0: a quarter of the memory, at most 4 GiB
  io_backend io = io_backend::automatic;  // how files are read
  bool register_buffers = false;          // with io_uring, as far as locked memory allows
  source_options source = {};             // how files, servers and stores are read
  // Allocates batches; null: ordinary pages. Must outlive the engine, its loaders and every batch,
  // which returns its memory to it.
  host_allocator* allocator = nullptr;
  // Adds sources of the program: called once for the registry of each I/O thread
  // (examples/own_source.cc).
  std::function<void(source_registry&)> add_sources = {};
  // Whether each skipped sample that the ledger lists is logged as a notice. If not, they are
  // logged only at log_level::debug, as the further ones always are: for programs that list them
  // themselves.
  bool tell_skipped = true;
  // Puts the messages of skipped samples into the program's words, for the ledger and the report,
  // as in_program_words() does. Called on I/O threads. Null: as they are.
  std::function<std::string(const std::string&)> in_words = {};

  static const option_list<engine_options>& variables();
  // For millrace's own programs, which list what was skipped and set the log level themselves.
  // Throws `failure` (bad_setting) for a text that is not a value of its variable.
  static engine_options from(const settings& s);
  // Options from the MILLRACE_ variables and those of proxies and object stores
  // (docs/variables.md). An engine made with other options reads no variable. Sets the log level if
  // MILLRACE_LOG is set. Throws `failure` (bad_setting) for a variable that is unknown or out of
  // range.
  static engine_options from_environment();
};

// Every variable of millrace, in the order in which `millrace env` lists them. Lives as long as the
// process.
const std::vector<setting>& all_settings();

// The variables of `environment` (see settings::from_environment) that millrace knows, and those of
// proxies and object stores. Fails with bad_setting.
result<settings> read_settings(const char* const* environment);

}  // namespace millrace
