#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/base/random.h"
#include "engine/host/stepper.h"
#include "engine/threads/io_thread.h"
#include "tests/support/memory_files.h"
#include "tests/support/simulated_network.h"

namespace millrace::testing {

// Runs engines of the real code on one thread, in simulated time, from one seed. The seed
// determines the order in which I/O threads' event loops and tasks of pools run, and the time that
// tasks take. When nothing can run, time jumps to the next timer. Files are memory_files; a network
// is simulated_network. The same seed gives the same steps, and so the same trace().
//
// In force while it exists; one at a time. Engines are created, used and destroyed during that
// time, by this thread. If everything waits and nothing wakes it, or a wait takes more than
// `longest` of simulated time, it prints its seed and ends the program: nothing could be unwound.
class simulator final : public stepper, public simulated_clock {
 public:
  explicit simulator(std::uint64_t seed);
  ~simulator() override;
  simulator(const simulator&) = delete;
  simulator& operator=(const simulator&) = delete;

  memory_files files;
  // Printed last by a program that hangs: how to reproduce it.
  std::string replay;
  steady_clock::duration longest = std::chrono::hours(2);
  // A task of a pool that sometimes takes this long: a device that hangs. Zero: none.
  steady_clock::duration stall{0};

  // Called whenever time moves; returns how far it jumps beyond. Null: not at all.
  std::function<steady_clock::duration()> jump;

  random_stream& random() { return random_; }
  // Everything that is created and called from now on belongs to this process.
  void run_as(int process);
  // The I/O thread that was created last.
  io_thread& newest_io() { return *ios_.back().io; }
  std::uint64_t trace() const { return trace_; }
  std::uint64_t steps() const { return steps_; }

  void began(io_thread& io) override;
  void ended(io_thread& io) override;
  void began(worker_pool& pool) override;
  void ended(worker_pool& pool) override;
  void queued(worker_pool& pool) override;
  void run_until(const std::function<bool()>& over) override;

  std::chrono::steady_clock::time_point now() const override { return now_; }
  std::int64_t unix_seconds() const override { return 1'700'000'000; }
  void wake_at(std::chrono::steady_clock::time_point when) override {
    const unhooked here;
    timers_.insert(when);
  }

 private:
  using time_point = std::chrono::steady_clock::time_point;
  struct loop {
    io_thread* io;
    int process;
    bool idle = false;
  };
  struct pool {
    worker_pool* of;
    int process;
    std::deque<time_point> due = {};  // of its tasks, in their order
  };
  struct choice {
    loop* io;  // or a task of a pool
    pool* from;
    std::size_t task;
  };

  bool step();
  bool advance();
  void fire_timers();
  void took(std::uint64_t what);
  [[noreturn]] void hang(const char* why) const;

  std::deque<loop> ios_;
  std::deque<pool> pools_;
  std::multiset<time_point> timers_;
  random_stream random_;
  random_stream lengths_;
  time_point now_{std::chrono::hours(1)};
  int current_ = 0;
  std::uint64_t trace_;
  std::uint64_t steps_ = 0;
  std::vector<choice> choices_;
};

}  // namespace millrace::testing
