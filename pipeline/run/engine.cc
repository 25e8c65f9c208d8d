#include "pipeline/run/engine.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "engine/base/option_list.h"
#include "engine/host/host.h"
#include "engine/threads/worker_pool.h"
#include "io/cache/cache_folder.h"
#include "io/standard_sources.h"
#include "pipeline/run/engine_core.h"

namespace millrace {

// A forked child must not destroy the core: its threads are the parent's and cannot be joined
// there.
engine::engine(const engine_options& options)
    : core_(new detail::engine_core(options), [](detail::engine_core* core) {
        if (core->is_of_this_process()) delete core;
      }) {}

engine::~engine() {
  if (core_->is_of_this_process()) detail::run_base::end_abandoned(*core_);
}

loader<sample> engine::run(const lane_plan<sample>& what, const std::stop_token& stop) {
  return run(interleaved(what), stop);
}

runtime& engine::threads() {
  return *core_->threads;
}

const engine_options& engine::options() const {
  return core_->options;
}

const source_registry& engine::sources(int io_thread_index) const {
  return core_->registries.at(static_cast<std::size_t>(io_thread_index));
}

namespace detail {

pool_governor::pool_governor(worker_pool& pool) : pool_(pool), controller_(pool.threads()) {}

void pool_governor::consumer_waited(double seconds) {
  constexpr double between_looks = 0.1;
  const std::scoped_lock lock(mutex_);
  waited_ += seconds;
  const auto now = steady_clock::now();
  const double passed = std::chrono::duration<double>(now - last_).count();
  if (passed < between_looks) return;
  const double busy = pool_.busy_seconds();
  pool_.use(controller_.next({passed, waited_, busy - busy_before_}));
  last_ = now;
  busy_before_ = busy;
  waited_ = 0;
}

engine_core::engine_core(const engine_options& o) : options(o), process_(getpid()) {
  engine_options::variables().check(o);
  cache_folder(o.source.cache).check_name().value();
  if (options.memory_bytes == 0) options.memory_bytes = default_memory_bytes();
  threads = std::make_unique<runtime>(runtime_options{.io_threads = o.io_threads,
                                                      .cpu_threads = o.cpu_threads,
                                                      .io = o.io,
                                                      .register_buffers = o.register_buffers});
  if (o.cpu_threads == 0) governor = std::make_unique<pool_governor>(threads->cpu());
  // Never reallocated: sources may keep references to their registry.
  registries.reserve(static_cast<std::size_t>(o.io_threads));
  for (int i = 0; i < o.io_threads; ++i) {
    registries.push_back(standard_sources(threads->io(i), o.source));
    if (o.add_sources) called_as("add_sources", [&] { o.add_sources(registries.back()); });
  }
}

engine_core::~engine_core() {
  registries.clear();
}

bool engine_core::is_of_this_process() const {
  return getpid() == process_;
}

int engine_core::next_io() {
  return static_cast<int>(runs_++ % static_cast<unsigned>(options.io_threads));
}

}  // namespace detail
}  // namespace millrace
