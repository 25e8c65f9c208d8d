#include "pipeline/engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <utility>

#include "engine/cpu_time.h"
#include "engine/log.h"
#include "engine/option_list.h"
#include "engine/thread_owner.h"
#include "io/standard_sources.h"
#include "pipeline/records.h"

namespace millrace {

// In a forked child the core is left as it is: its threads are the parent's, and cannot be joined.
engine::engine(const engine_options& options)
    : core_(new detail::engine_core(options), [](detail::engine_core* core) {
        if (core->is_of_this_process()) delete core;
      }) {}

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
  if (options.memory_bytes == 0) options.memory_bytes = default_memory_bytes();
  threads = std::make_unique<runtime>(runtime_options{.io_threads = o.io_threads,
                                                      .cpu_threads = o.cpu_threads,
                                                      .io = o.io,
                                                      .register_buffers = o.register_buffers});
  if (o.cpu_threads == 0) governor = std::make_unique<pool_governor>(threads->cpu());
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

run_base::run_base(std::shared_ptr<engine_core> core, int io_thread_index)
    : core_(std::move(core)),
      io_(core_->threads->io(io_thread_index)),
      tasks_(io_.executor()),
      sources_(core_->registries.at(static_cast<std::size_t>(io_thread_index))),
      context_(make_context()) {
  check_may_wait();
}

std::unique_ptr<run_context> run_base::make_context() {
  host_allocator* own = core_->options.allocator;
  std::unique_ptr<run_context> made(
      new run_context{.threads = *core_->threads,
                      .io = io_,
                      .tasks = tasks_,
                      .sources = sources_,
                      .source = core_->options.source,
                      .allocator = own != nullptr ? *own : default_host_allocator(),
                      .memory = memory_plan(core_->options.memory_bytes),
                      .stop_asked = stop_asked_,
                      .tell_skipped = core_->options.tell_skipped});
  if (context_) made->told_of_lost_rate = context_->told_of_lost_rate;
  return made;
}

void run_base::check_all_claimed(const state& saved_by, const state& now) {
  // What lanes and ranks wrote is dealt anew, and checked, by the lanes.
  static constexpr std::array of_lanes = {plan_record,         lanes_record,     base_record,
                                          tail_record,         tail_seen_record, list_lanes_record,
                                          tail_lengths_record, epoch_record,     end_owed_record,
                                          ends_past_record,    own_ends_record,  ends_held_record};
  const auto stage_of = [](const std::string& name) {
    return name.substr(0, name.find(of_rank_begin));
  };
  for (const auto& [name, values] : saved_by.records()) {
    const std::string stage = stage_of(name);
    const bool is_known =
        name.starts_with("lane") || std::ranges::find(of_lanes, stage) != of_lanes.end() ||
        std::ranges::any_of(now.records(),
                            [&](const auto& r) { return stage_of(r.first) == stage; });
    if (is_known) continue;
    throw failure(
        error(errc::bad_state, "no stage of this plan has the saved state's record " + name)
            .hint("resume with the stages that it was saved with"));
  }
}

void run_base::check_process() const {
  if (is_of_this_process()) return;
  throw failure(error(errc::usage,
                      "this engine was made before fork(): its threads run in the "
                      "parent process alone")
                    .hint("make the engine in the child, after fork()"));
}

void run_base::check_may_wait() const {
  check_process();
  runtime& threads = *core_->threads;
  const void* const here = owner_of_this_thread();
  if (here == nullptr) return;
  bool is_own = here == &threads.cpu();
  for (int i = 0; i < threads.io_threads(); ++i) is_own = is_own || here == &threads.io(i);
  if (!is_own) return;
  throw failure(error(errc::usage,
                      "a loader was made, or asked for an item, in a function or a stage that runs "
                      "on a thread of its own engine, for which it would wait")
                    .hint("give that loader another engine"));
}

void run_base::check_nothing_lost() const {
  if (!tasks_.first_thrown()) return;
  const error first = error_of(tasks_.first_thrown(), "a task of the run");
  if (first.kind() == errc::no_memory) throw failure(first);
}

error run_base::why_ended(const std::exception_ptr& thrown) noexcept {
  if (!tasks_.stopped() || !is_stop(thrown)) return error_of(thrown, "the plan");
  try {
    return why_ended(run_stopped());
  } catch (...) {
    return error_of(std::current_exception(), "the plan");
  }
}

error run_base::why_ended(error given) noexcept {
  if (given.kind() != errc::stopped) return given;
  try {
    // Wherever the stop met it: reading, waiting for memory, between two items.
    if (!tasks_.first_thrown()) return stop_asked_ ? run_stopped() : given;
    told_why_ended_ = true;
    return error_of(tasks_.first_thrown(), "a task of the run").skippable(false);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

void run_base::check_between_items() const {
  if (owner_of_this_thread() != &io_) return;
  throw failure(error(errc::usage,
                      "a loader was asked for its state by a function or a stage of a plan, "
                      "which may have an item in hand that no state would have")
                    .hint("save between two calls of next(), on the thread that makes them"));
}

void run_base::on_spine(const std::function<void()>& f) {
  check_process();
  if (owner_of_this_thread() == &io_) return f();  // as a function of the plan may ask for counts
  // A failure crosses as a value: no exception object is shared between the threads.
  std::promise<std::optional<error>> done;
  auto waiting = done.get_future();
  asio::post(io_.context(), [&] {
    std::optional<error> failed;
    try {
      f();
    } catch (...) {
      failed = error_of(std::current_exception(), "a stage");
    }
    done.set_value(std::move(failed));
  });
  if (auto failed = get(waiting)) throw failure(std::move(*failed));
}

run_stats run_base::stats() {
  run_stats out;
  on_spine([&] {
    out.seconds = std::chrono::duration<double>(steady_clock::now() - start_).count();
    out.bytes_read = context_->counters.bytes;
    out.requests = context_->counters.requests;
    out.retries = context_->counters.retries;
    const worker_pool& pool = context_->threads.cpu();
    out.pool_threads = pool.threads();
    out.pool_used = pool.used();
    out.pool_busy = pool.busy_seconds();
    out.pool_cpu = pool.cpu_seconds();
    out.spine_cpu = thread_cpu_seconds();
    const std::uint64_t now = ticks();
    const double tick =
        out.seconds / static_cast<double>(std::max(now - start_ticks_, std::uint64_t{1}));
    double before = 0;
    // Figures are made in the order in which data passes.
    for (const auto& f : context_->stages) {
      const double served = static_cast<double>(f.served_until(now)) * tick;
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
  on_spine([&] { out = context_->counts; });
  return out;
}

void run_base::tell_who_waits(bool tells) noexcept try {
  const std::string who = context_->memory.starved();
  if (!tells || who.empty() || std::exchange(told_who_waits_, true)) return;
  log_notice(
      fmt::format("no item for {} s or more, and these wait for memory: {}. If the program keeps "
                  "items, they hold it: release them, or say how many it keeps at once "
                  "(batch_options.held; prefetch(n) makes room for n more) and raise the budget "
                  "(engine_options.memory_bytes, MILLRACE_MEMORY). If it keeps none, this is a "
                  "fault of millrace: report it with this line",
                  told_after.count(), who));
} catch (const std::bad_alloc&) {
  return;  // there is no memory to say who waits for some
}

void run_base::stop() {
  stop_asked_ = true;
  stop_.ask();
}

void run_base::stop_by(const std::stop_token& token) {
  flag_registration_.emplace(token, set_flag{&stop_asked_});
  stop_registration_.emplace(token, io_.executor(), [this] { tasks_.stop(); });
}

void run_base::close() {
  check_process();
  stop_registration_.reset();
  flag_registration_.reset();
  stop_asked_ = true;
  auto waiting = closed_.get_future();
  close_.ask();
  get(waiting);
}

void run_base::begin_closing() {
  tasks_.when_empty([this] { end_closing(); });
  tasks_.stop();
  if (tasks_.running() == 0) end_closing();
}

void run_base::end_closing() {
  // Nobody asks any more: it is said here, or nowhere.
  if (tasks_.first_thrown() && !told_why_ended_) {
    try {
      log_notice("the run had failed: " +
                 error_of(tasks_.first_thrown(), "a task of the run").message());
    } catch (const std::bad_alloc&) {
      log_notice("the run had failed");
    }
  }
  destroy_streams();
  closed_.set_value();
}

}  // namespace detail
}  // namespace millrace
