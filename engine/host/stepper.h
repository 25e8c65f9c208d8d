#pragma once

#include <functional>
#include <future>

#include "engine/host/clock.h"

namespace millrace {

class io_thread;
class worker_pool;

// Replaces the runtime's threads in a simulator. I/O threads and worker pools created while a
// stepper is active start no threads; it runs their work, in an order it chooses, on the thread
// that waits for it. All calls on one thread.
class stepper {
 public:
  virtual ~stepper() = default;
  virtual void began(io_thread& io) = 0;
  virtual void ended(io_thread& io) = 0;
  virtual void began(worker_pool& pool) = 0;
  virtual void ended(worker_pool& pool) = 0;
  // Called when the pool has one more task; worker_pool::run_one() runs it.
  virtual void queued(worker_pool& pool) = 0;
  // Runs, as simulated time passes, until `over()`.
  virtual void run_until(const std::function<bool()>& over) = 0;

  // Null: real threads.
  static stepper* in_force() { return in_force_; }

 protected:
  stepper() = default;
  stepper(const stepper&) = default;
  stepper& operator=(const stepper&) = default;

 private:
  friend void simulate_threads(stepper* instead);  // engine/host/seams.h
  static inline constinit stepper* in_force_ = nullptr;
};

// Waits, outside the runtime's threads, for their result; at most `limit` of real time, without a
// limit in a simulator.
template <class T>
std::future_status wait_for(const std::future<T>& answer, steady_clock::duration limit) {
  stepper* const steps = stepper::in_force();
  if (steps == nullptr) return answer.wait_for(limit);
  steps->run_until(
      [&] { return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  return std::future_status::ready;
}

// Waits without a limit, and returns the result.
template <class T>
T get(std::future<T>& answer) {
  if (stepper::in_force() != nullptr) wait_for(answer, {});
  return answer.get();
}

}  // namespace millrace
