#include "python/binding/interruptible_calls.h"

#include <millrace/error.h>
#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace nb = nanobind;

namespace millrace::python {
namespace {

constexpr auto slice = std::chrono::milliseconds(50);
constexpr int slices_after_interrupt = 20;

// Counts a thread that is in a call.
struct caller {
  std::atomic<int>& count;
  explicit caller(std::atomic<int>& c) : count(c) { ++count; }
  ~caller() { --count; }
  caller(const caller&) = delete;
  caller& operator=(const caller&) = delete;
};

// Whether a handler of a signal has raised; its exception is then set.
bool has_signal_raised() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace

struct interruptible_calls::task {
  std::function<void()> what;
  bool done = false;          // guarded by the mutex
  std::exception_ptr thrown;  // by `what`; once it is done
};

struct interruptible_calls::inside {
  std::shared_ptr<inside> itself;  // set: it is never destroyed
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex.
  std::shared_ptr<task> job;  // null: the thread is idle
  bool ended = false;
  std::thread thread;  // constant after start()

  void run() {
    ::pthread_setname_np(::pthread_self(), "mr-python");
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ended || job; });
      if (!job) return;
      const std::shared_ptr<task> mine = job;
      lock.unlock();
      try {
        mine->what();
      } catch (...) {
        mine->thrown = std::current_exception();
      }
      mine->what = nullptr;
      lock.lock();
      mine->done = true;
      job = nullptr;
      changed.notify_all();
    }
  }

  // Waits, without the GIL. False: a handler of a signal has raised.
  template <class Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, Condition is_so) {
    while (!is_so()) {
      if (changed.wait_for(lock, slice) == std::cv_status::no_timeout) continue;
      lock.unlock();
      const bool raised = has_signal_raised();
      lock.lock();
      if (raised) return false;
    }
    return true;
  }
};

interruptible_calls::interruptible_calls() : inside_(std::make_shared<inside>()) {}

interruptible_calls::~interruptible_calls() {
  if (process_ == 0) return;
  bool is_left = is_of_parent();  // its locks may be held by threads that are not here
  if (!is_left) {
    const std::scoped_lock lock(inside_->mutex);
    is_left = inside_->job != nullptr;
    inside_->ended = true;
  }
  if (is_left) {
    inside_->itself = inside_;
    return;
  }
  inside_->changed.notify_all();
  inside_->thread.join();
}

bool interruptible_calls::is_of_parent() const {
  return process_ != 0 && process_ != ::getpid();
}

void interruptible_calls::check_process() const {
  if (!is_of_parent()) return;
  throw failure(error(errc::usage, "this was begun in process " + std::to_string(process_) +
                                       ", of which this one is a fork")
                    .hint("make it again after the fork, or iterate it only there"));
}

bool interruptible_calls::is_busy() const {
  if (process_ == 0 || is_of_parent()) return false;
  const std::scoped_lock lock(inside_->mutex);
  return inside_->job != nullptr;
}

bool interruptible_calls::wait_for_callers(std::chrono::milliseconds most) {
  const nb::gil_scoped_release without;
  std::unique_lock lock(inside_->mutex);
  const auto until = std::chrono::steady_clock::now() + most;
  while (callers_ > 0 && std::chrono::steady_clock::now() < until) {
    inside_->changed.wait_for(lock, slice);
  }
  return callers_ == 0;
}

void interruptible_calls::start() {
  inside_->thread = std::thread([in = inside_.get()] { in->run(); });
  process_ = ::getpid();
}

void interruptible_calls::call(const std::function<void()>& what,
                               const std::function<void()>& interrupt) {
  check_process();
  if (process_ == 0) start();
  const caller counted(callers_);  // to the end of this function, where it has the GIL again
  const auto mine = std::make_shared<task>();
  mine->what = what;
  inside& in = *inside_;
  bool raised = false;
  {
    const nb::gil_scoped_release without;
    std::unique_lock lock(in.mutex);
    // For the end of a call that was given up, or of another thread's.
    raised = !in.wait_until(lock, [&] { return !in.job; });
    if (!raised) {
      in.job = mine;
      in.changed.notify_all();
      raised = !in.wait_until(lock, [&] { return mine->done; });
      if (raised && interrupt) {
        lock.unlock();
        interrupt();
        lock.lock();
        in.changed.wait_for(lock, slices_after_interrupt * slice, [&] { return mine->done; });
      }
    }
  }
  // A signal that came meanwhile: seen here, what the call gave stays where the next one finds it.
  if (raised || PyErr_CheckSignals() != 0) throw nb::python_error();
  if (mine->thrown) std::rethrow_exception(mine->thrown);
}

void interruptible_calls::call_here(const std::function<void()>& what) {
  check_process();
  const caller counted(callers_);  // as in call()
  const nb::gil_scoped_release without;
  what();
}

void interruptible_calls::wait_here(const std::function<bool(std::chrono::milliseconds)>& is_done,
                                    const std::function<void()>& interrupt) {
  check_process();
  const caller counted(callers_);  // as in call()
  bool raised = false;
  {
    const nb::gil_scoped_release without;
    while (!raised && !is_done(slice)) raised = has_signal_raised();
    if (raised) {
      interrupt();
      for (int i = 0; i < slices_after_interrupt && !is_done(slice); ++i) {
      }
    }
  }
  if (raised || PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace millrace::python
