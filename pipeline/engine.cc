#include "pipeline/engine.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "engine/cpu_time.h"
#include "engine/log.h"

namespace millrace {

engine_options engine_options::from(const settings& s) {
  engine_options o;
  o.cpu_threads = s.integer("MILLRACE_CPU_THREADS");
  o.io_threads = s.integer("MILLRACE_IO_THREADS");
  o.memory_bytes = s.bytes("MILLRACE_MEMORY");
  const std::string& io = s.text("MILLRACE_IO");
  o.io = io == "uring"   ? io_backend::uring
         : io == "pread" ? io_backend::pread
                         : io_backend::automatic;
  o.register_buffers = s.text("MILLRACE_REGISTERED_BUFFERS") == "on";
  o.source = source_options::from(s).value();
  return o;
}

engine::engine(const engine_options& options) : options_(options) {
  if (options_.memory_bytes == 0) options_.memory_bytes = default_memory_bytes();
  threads_ =
      std::make_unique<runtime>(runtime_options{.io_threads = options.io_threads,
                                                .cpu_threads = options.cpu_threads,
                                                .io = options.io,
                                                .register_buffers = options.register_buffers});
  if (options.cpu_threads == 0) {
    governor_ = std::make_unique<detail::pool_governor>(threads_->cpu());
  }
  for (int i = 0; i < options.io_threads; ++i) {
    registries_.push_back(standard_sources(threads_->io(i), options_.source));
    if (options.add_sources) options.add_sources(registries_.back());
  }
}

// Kept-alive connections belong to their I/O thread's event loop: they go first.
engine::~engine() {
  registries_.clear();
}

io_thread& engine::next_io() {
  turn_ = (turn_ + 1) % threads_->io_threads();
  return threads_->io(turn_);
}

const source_registry& engine::next_sources() const {
  return sources(std::max(turn_, 0));
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

run_base::run_base(runtime& threads, io_thread& io, const source_registry& sources,
                   const engine_options& options, pool_governor* governor)
    : io_(io),
      governor_(governor),
      tasks_(io.executor()),
      context_{
          .threads = threads,
          .io = io,
          .tasks = tasks_,
          .sources = sources,
          .source = options.source,
          .allocator = options.allocator != nullptr ? *options.allocator : default_host_allocator(),
          .memory = memory_plan(options.memory_bytes)} {}

void run_base::on_spine(const std::function<void()>& f) {
  // A failure crosses as a value: no exception object is shared between the threads.
  std::promise<std::optional<error>> done;
  auto waiting = done.get_future();
  asio::post(io_.context(), [&] {
    try {
      f();
      done.set_value(std::nullopt);
    } catch (const failure& failed) {
      done.set_value(failed.why());
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  if (auto failed = waiting.get()) throw failure(std::move(*failed));
}

run_stats run_base::stats() {
  run_stats out;
  on_spine([&] {
    out.seconds = std::chrono::duration<double>(steady_clock::now() - start_).count();
    out.bytes_read = context_.counters.bytes;
    out.requests = context_.counters.requests;
    out.retries = context_.counters.retries;
    const worker_pool& pool = context_.threads.cpu();
    out.pool_threads = pool.threads();
    out.pool_used = pool.used();
    out.pool_busy = pool.busy_seconds();
    out.pool_cpu = pool.cpu_seconds();
    out.spine_cpu = thread_cpu_seconds();
    const double tick =
        out.seconds / static_cast<double>(std::max(ticks() - start_ticks_, std::uint64_t{1}));
    double before = 0;
    // Figures are made in the order in which data passes.
    for (const auto& f : context_.stages) {
      const double served = static_cast<double>(f.served) * tick;
      out.stages.push_back({.name = f.name,
                            .items = f.items,
                            .bytes = f.bytes,
                            .busy = std::max(0.0, served - before),
                            .waiting_input = std::min(before, served),
                            .waiting_output = std::max(0.0, out.seconds - served)});
      before = served;
    }
  });
  return out;
}

ledger run_base::counts() {
  ledger out;
  on_spine([&] { out = context_.counts; });
  return out;
}

void run_base::tell_who_waits() {
  const std::string who = context_.memory.starved();
  if (who.empty() || std::exchange(told_who_waits_, true)) return;
  log_notice(
      fmt::format("no item for {} s or more, and these wait for memory: {}. Items that the program "
                  "keeps hold it: copy what is to stay, or raise MILLRACE_MEMORY",
                  told_after.count(), who));
}

void run_base::stop() {
  asio::post(io_.context(), [this] { tasks_.stop(); });
}

void run_base::close() {
  on_spine([this] { tasks_.stop(); });
  std::promise<void> joined;
  auto waiting = joined.get_future();
  asio::co_spawn(io_.context(), tasks_.join(),
                 [&joined](const std::exception_ptr&) { joined.set_value(); });
  waiting.get();
  on_spine([this] { destroy_streams(); });
}

}  // namespace detail
}  // namespace millrace
