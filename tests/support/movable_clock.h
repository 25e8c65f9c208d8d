#pragma once

#include <atomic>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>

#include "engine/host/clock.h"
#include "engine/host/seams.h"
#include "engine/threads/io_thread.h"
#include "tests/support/spine.h"

namespace millrace::testing {

// The host's time plus an offset that the test moves, for code that waits for the kernel and for a
// deadline, and cannot be simulated. In force while it exists; create it before any thread of the
// engine. Any thread.
class movable_clock final : public simulated_clock {
 public:
  movable_clock() { simulate_clock(this); }
  ~movable_clock() override { simulate_clock(nullptr); }
  movable_clock(const movable_clock&) = delete;
  movable_clock& operator=(const movable_clock&) = delete;

  std::chrono::steady_clock::time_point now() const override {
    return std::chrono::steady_clock::now() + ahead_.load();
  }
  std::int64_t unix_seconds() const override { return 1'700'000'000; }
  void wake_at(std::chrono::steady_clock::time_point /*when*/) override {}

  // First runs everything that is ready on `io`, then moves time and fires the timers that are due.
  void move(io_thread& io, std::chrono::nanoseconds time) {
    settle(io, 20);
    ahead_.store(ahead_.load() + time);
    // A timer before all others makes the event loop check all that are due.
    asio::basic_waitable_timer<steady_clock> first(io.executor(), steady_clock::time_point::min());
    std::promise<void> fired;
    asio::post(io.context(), [&] { first.async_wait([&](const auto&) { fired.set_value(); }); });
    fired.get_future().get();
  }

 private:
  std::atomic<std::chrono::nanoseconds> ahead_{std::chrono::nanoseconds(0)};
};

}  // namespace millrace::testing
