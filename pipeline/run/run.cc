#include "pipeline/run/run.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/coroutines/scope.h"
#include "engine/coroutines/stop.h"
#include "engine/host/cpu_time.h"
#include "engine/host/log.h"
#include "engine/host/stepper.h"
#include "engine/host/thread_owner.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/worker_pool.h"
#include "pipeline/run/engine_core.h"

namespace millrace::detail {
namespace {

// The time that a consumer waits before a notice gives the reason.
constexpr std::chrono::seconds told_after{10};

}  // namespace

// A call of pull(), between ask() and take_answer().
struct run_base::request {
  std::promise<outcome> answer;
  std::future<outcome> waiting = answer.get_future();
  // By the owner's thread.
  steady_clock::duration waited = {};
  int checks = 0;  // of who waits for memory
};

struct run_base::inside {
  explicit inside(std::shared_ptr<engine_core> of, int io_thread_index)
      : core(std::move(of)),
        io(core->threads->io(io_thread_index)),
        tasks(io.executor()),
        sources(core->registries.at(static_cast<std::size_t>(io_thread_index))) {}

  std::shared_ptr<engine_core> core;  // outlives all other members
  io_thread& io;
  scope tasks;
  std::atomic<bool> stop_asked = false;  // any thread
  const source_registry& sources;
  std::unique_ptr<run_context> context;  // spine
  steady_clock::time_point start = steady_clock::now();
  std::uint64_t start_ticks = ticks();
  std::optional<double> spine_cpu_before;  // spine: when the first item was asked for

  std::atomic<bool> is_called = false;       // any thread: see one_call
  bool begun = false;                        // the owner's thread: ask() was called
  std::atomic<std::uint64_t> delivered = 0;  // samples that it has taken; any thread reads it
  std::mutex counts_mutex;
  std::shared_ptr<const ledger> kept_counts;  // with what was answered last; guarded
  std::optional<request> asked;               // the owner's thread: from ask() to take_answer()
  bool is_broken = false;                     // spine: the last error ended the run
  bool told_who_waits = false;
  bool told_why_ended = false;  // spine

  // Spine: false once the run is closed. A stop that a thread of the engine asks for may be called
  // after a close that another thread asks for later.
  std::shared_ptr<bool> is_open = std::make_shared<bool>(true);
  wake_up stop;
  wake_up close;
  std::promise<void> closed;
  struct set_flag {
    std::atomic<bool>* to;
    void operator()() const noexcept { *to = true; }
  };
  std::optional<std::stop_callback<set_flag>> flag_registration;
  std::optional<on_stop> stop_registration;

  std::unique_ptr<run_base> next_abandoned;  // guarded by the core's abandoned_mutex

  // Whether the calling thread is one of the engine's: an I/O thread, or of the pool.
  bool is_own_thread() const noexcept;
  bool is_io_thread() const noexcept;
  void check_may_wait() const;
  // Stops the tasks, on the spine, unless the run is closed.
  std::function<void()> stop_tasks() {
    return [this, still = is_open] {
      if (*still) tasks.stop();
    };
  }
  // Spine.
  void give_answer(outcome how) noexcept;
  // The reason why next() failed: the first exception of a stage or a task, not the stop that it
  // caused in the others. Spine.
  error why_ended(const std::exception_ptr& thrown) noexcept;
  error why_ended(error given) noexcept;
  // If stages waited for memory since the last call, and `tells`: logs a notice, once. Must not
  // throw: next() waits for code that refers to its frame.
  void tell_who_waits(bool tells) noexcept;
  void begin_closing(run_base* of);
  void end_closing(run_base* of);
};

run_base::run_base(std::shared_ptr<engine_core> core) {
  const int io_thread_index = core->next_io();
  inside_ = std::make_unique<inside>(std::move(core), io_thread_index);
  inside_->stop = wake_up(inside_->io.executor(), inside_->stop_tasks());
  inside_->close =
      wake_up(inside_->io.executor(), [this, of = inside_.get()] { of->begin_closing(this); });
  inside_->context = make_context();
  check_process();
  inside_->check_may_wait();
  end_abandoned(*inside_->core);
}

run_base::~run_base() = default;

bool run_base::is_of_this_process() const {
  return inside_->core->is_of_this_process();
}

bool run_base::close_or_abandon() noexcept {
  if (!is_of_this_process()) return false;
  engine_core& core = *inside_->core;
  if (!inside_->is_own_thread()) {
    close();
    end_abandoned(core);
    return true;
  }
  stop();
  log_notice(
      "a loader was destroyed by a function or a stage on a thread of its engine, which cannot "
      "wait for its end: it is stopped, and ends when a loader of the engine is made or destroyed "
      "elsewhere, or the engine is");
  const std::scoped_lock lock(core.abandoned_mutex);
  inside_->next_abandoned = std::move(core.abandoned);
  core.abandoned.reset(this);
  return false;
}

void run_base::end_abandoned(engine_core& core) noexcept {
  const auto one = [&] {
    const std::scoped_lock lock(core.abandoned_mutex);
    std::unique_ptr<run_base>* at = &core.abandoned;
    while (*at && (*at)->inside_->is_called) at = &(*at)->inside_->next_abandoned;
    if (!*at || (*at)->inside_->is_own_thread()) return std::unique_ptr<run_base>();
    std::unique_ptr<run_base> next = std::move((*at)->inside_->next_abandoned);
    return std::exchange(*at, std::move(next));
  };
  while (const auto abandoned = one()) abandoned->close();
}

run_context& run_base::context() const {
  return *inside_->context;
}

void run_base::use(std::unique_ptr<run_context>& other) {
  inside_->context.swap(other);
}

std::unique_ptr<run_context> run_base::make_context() {
  inside& in = *inside_;
  const engine_options& options = in.core->options;
  host_allocator* const own = options.allocator;
  std::unique_ptr<run_context> made(
      new run_context{.threads = *in.core->threads,
                      .io = in.io,
                      .tasks = in.tasks,
                      .sources = in.sources,
                      .source = options.source,
                      .allocator = own != nullptr ? *own : default_host_allocator(),
                      .memory = memory_plan(options.memory_bytes),
                      .stop_asked = in.stop_asked,
                      .tell_skipped = options.tell_skipped,
                      .in_words = options.in_words});
  if (in.context) made->reported_lost_rate = in.context->reported_lost_rate;
  return made;
}

void run_base::check_process() const {
  if (is_of_this_process()) return;
  throw failure(error(errc::usage,
                      "this engine was made before fork(): its threads run only in the "
                      "parent process")
                    .hint("make the engine in the child, after fork()"));
}

run_base::one_call::one_call(run_base& of) : of_(of) {
  of.check_process();
  if (!of.inside_->is_called.exchange(true, std::memory_order_acquire)) return;
  throw failure(error(errc::usage,
                      "a loader was called while another call of it was under way, on another "
                      "thread or for a function of its own plan")
                    .hint("one thread at a time takes a loader's items and saves its state; a "
                          "function that needs items of its own needs a loader and an engine of "
                          "its own"));
}

run_base::one_call::~one_call() {
  of_.inside_->is_called.store(false, std::memory_order_release);
}

void run_base::check_not_begun() const {
  if (!inside_->begun) return;
  throw failure(error(errc::bad_state, "restore() after next() or wait_for(): the run has begun")
                    .hint("run the plan again, and restore the new loader first"));
}

bool run_base::inside::is_own_thread() const noexcept {
  const void* const here = owner_of_this_thread();
  return here != nullptr && (here == &core->threads->cpu() || is_io_thread());
}

bool run_base::inside::is_io_thread() const noexcept {
  runtime& threads = *core->threads;
  const void* const here = owner_of_this_thread();
  bool is_one = false;
  for (int i = 0; i < threads.io_threads(); ++i) is_one = is_one || here == &threads.io(i);
  return is_one;
}

// Throws on a thread of the engine, which would wait for itself.
void run_base::inside::check_may_wait() const {
  if (!is_own_thread()) return;
  throw failure(error(errc::usage,
                      "a loader was made, or asked for an item, in a function or a stage that runs "
                      "on a thread of the loader's own engine, which would wait for itself")
                    .hint("give that loader another engine"));
}

void run_base::check_nothing_lost() const {
  if (!inside_->tasks.first_thrown()) return;
  const error first = error_of(inside_->tasks.first_thrown(), "a task of the run");
  if (first.kind() == errc::no_memory) throw failure(first);
}

error run_base::inside::why_ended(const std::exception_ptr& thrown) noexcept {
  if (!tasks.stopped() || !is_stop(thrown)) return error_of(thrown, "the plan");
  try {
    return why_ended(run_stopped());
  } catch (...) {
    return error_of(std::current_exception(), "the plan");
  }
}

error run_base::inside::why_ended(error given) noexcept {
  if (given.kind() != errc::stopped) return given;
  try {
    // The stop may have been met anywhere: while reading, waiting for memory, between two items.
    if (!tasks.first_thrown()) return stop_asked ? run_stopped() : given;
    told_why_ended = true;
    return error_of(tasks.first_thrown(), "a task of the run").skippable(false);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

void run_base::check_between_items() const {
  if (!inside_->is_own_thread()) return;
  throw failure(error(errc::usage,
                      "a loader was asked for its state by a function or a stage of a plan, "
                      "which may have an item in hand that the state would lack")
                    .hint("save between two calls of next(), on the thread that makes them"));
}

void run_base::on_spine(const std::function<void()>& f) {
  check_process();
  // A function of the plan may ask for counts.
  if (owner_of_this_thread() == &inside_->io) return f();
  if (inside_->is_io_thread()) {
    throw failure(
        error(
            errc::usage,
            "a loader was asked for its figures in a function or a stage of another loader of its "
            "engine, on that one's I/O thread: two that ask each other would wait forever")
            .hint("ask on a thread of the program, or in the pool (map() with threads)"));
  }
  // A failure crosses as a value, so that no exception object is shared between threads.
  std::promise<std::optional<error>> done;
  auto waiting = done.get_future();
  asio::post(inside_->io.context(), [&] {
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
    out.seconds = seconds_since(inside_->start);
    out.sources = inside_->context->counters;
    const worker_pool& pool = inside_->context->threads.cpu();
    out.pool_threads = pool.threads();
    out.pool_used = pool.used();
    out.pool_busy = pool.busy_seconds();
    out.pool_cpu = pool.cpu_seconds();
    out.spine_cpu = thread_cpu_seconds();
    out.spine_cpu -= inside_->spine_cpu_before.value_or(out.spine_cpu);
    const std::uint64_t now = ticks();
    const double tick =
        out.seconds / static_cast<double>(std::max(now - inside_->start_ticks, std::uint64_t{1}));
    double before = 0;
    // Figures are listed in the order in which data passes through the stages.
    for (const auto& f : inside_->context->stages) {
      const double served = static_cast<double>(f->served_until(now)) * tick;
      out.stages.push_back({.name = f->name,
                            .items = f->items,
                            .bytes = f->bytes,
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
  std::shared_ptr<const ledger> kept;
  {
    const std::scoped_lock lock(inside_->counts_mutex);
    kept = inside_->kept_counts;
  }
  if (kept) {
    check_process();
    out = *kept;
  } else {
    on_spine([&] { out = inside_->context->counts; });
  }
  out.delivered = inside_->delivered;
  return out;
}

void run_base::inside::tell_who_waits(bool tells) noexcept try {
  const std::string who = context->memory.starved();
  if (!tells || who.empty() || std::exchange(told_who_waits, true)) return;
  log_notice(
      fmt::format("no item for {} s or more, and these wait for memory: {}. If the program keeps "
                  "items, they hold it: release them, or say how many it keeps at once "
                  "(batch_options.held; prefetch(n) makes room for n more) and raise the budget "
                  "(engine_options.memory_bytes, MILLRACE_MEMORY). If it keeps none, this is a "
                  "bug in millrace: report it with this line",
                  told_after.count(), who));
} catch (const std::bad_alloc&) {
  return;  // no memory for the notice
}

void run_base::ask() {
  check_process();
  inside& in = *inside_;
  in.check_may_wait();
  if (in.asked) return;
  in.begun = true;
  in.asked.emplace();
  try {
    asio::post(in.io.context(), [this, &in] {
      if (!in.spine_cpu_before) in.spine_cpu_before = thread_cpu_seconds();
      try {
        in.tasks.spawn(pull());
      } catch (...) {
        in.give_answer({.failed = error_of(std::current_exception(), "the plan")});
      }
    });
  } catch (...) {
    in.asked.reset();
    throw;
  }
}

bool run_base::is_asked() const {
  return inside_->asked.has_value();
}

bool run_base::is_answered_within(std::chrono::nanoseconds timeout) {
  request& asked = *inside_->asked;
  const auto begun = steady_clock::now();
  const auto waited_before = asked.waited;
  for (steady_clock::duration spent{};;) {
    // The first check, at half the time, resets what the second one reports.
    const steady_clock::duration next_check = (asked.checks + 1) * (told_after / 2);
    const auto wait = std::min<steady_clock::duration>(timeout - spent, next_check - asked.waited);
    if (millrace::wait_for(asked.waiting, std::max(wait, steady_clock::duration{})) ==
        std::future_status::ready) {
      asked.waited = waited_before + (steady_clock::now() - begun);
      return true;
    }
    spent = steady_clock::now() - begun;
    asked.waited = waited_before + spent;
    if (asked.waited >= next_check) inside_->tell_who_waits(asked.checks++ > 0);
    if (spent >= timeout) return false;
  }
}

run_base::outcome run_base::take_answer() {
  while (!is_answered_within(told_after)) {
  }
  inside& in = *inside_;
  outcome how = in.asked->waiting.get();
  const double waited = std::chrono::duration<double>(in.asked->waited).count();
  in.asked.reset();
  if (in.core->governor) in.core->governor->consumer_waited(waited);
  return how;
}

void run_base::show_counts(std::shared_ptr<const ledger> kept) {
  const std::scoped_lock lock(inside_->counts_mutex);
  inside_->kept_counts.swap(kept);
}

// The owner's thread may destroy the request as soon as it has the answer.
void run_base::inside::give_answer(outcome how) noexcept {
  auto answer = std::move(asked->answer);
  answer.set_value(std::move(how));
}

bool run_base::is_stop_asked() const {
  return inside_->stop_asked;
}

void run_base::add_delivered(std::size_t samples) {
  inside_->delivered += samples;
}

bool run_base::is_to_end() const {
  return inside_->stop_asked && !inside_->is_broken;
}

void run_base::pulled(const std::exception_ptr& thrown, const result<void>& given,
                      bool ended) noexcept {
  inside& in = *inside_;
  outcome how{.ended = ended};
  if (thrown) {
    how.failed = in.why_ended(thrown);
  } else if (!given) {
    how.failed = in.why_ended(given.error());
  }
  in.is_broken = how.failed && !how.failed->is_skippable();
  in.give_answer(std::move(how));
}

void run_base::stop() {
  inside_->stop_asked = true;
  inside_->stop.ask();
}

void run_base::stop_by(const std::stop_token& token) {
  inside& in = *inside_;
  in.flag_registration.emplace(token, inside::set_flag{&in.stop_asked});
  in.stop_registration.emplace(token, in.io.executor(), in.stop_tasks());
}

void run_base::close() {
  check_process();
  inside& in = *inside_;
  in.stop_registration.reset();
  in.flag_registration.reset();
  in.stop_asked = true;
  auto waiting = in.closed.get_future();
  in.close.ask();
  get(waiting);
}

void run_base::inside::begin_closing(run_base* of) {
  tasks.when_empty([this, of] { end_closing(of); });
  tasks.stop();
  if (tasks.running() == 0) end_closing(of);
}

void run_base::inside::end_closing(run_base* of) {
  // No further call will return this error: log it, or it is lost.
  if (tasks.first_thrown() && !told_why_ended) {
    try {
      log_notice("the run had failed: " +
                 error_of(tasks.first_thrown(), "a task of the run").message());
    } catch (const std::bad_alloc&) {
      log_notice("the run had failed");
    }
  }
  of->destroy_streams();
  *is_open = false;
  closed.set_value();
}

}  // namespace millrace::detail
