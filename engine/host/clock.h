#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

// A simulator's time. One thread.
class simulated_clock {
 public:
  virtual ~simulated_clock() = default;
  // The present time of the simulation.
  virtual std::chrono::steady_clock::time_point now() const = 0;
  // Seconds since 1970, UTC.
  virtual std::int64_t unix_seconds() const = 0;
  // Registers a timer that fires at `when`: time must not jump past it.
  virtual void wake_at(std::chrono::steady_clock::time_point when) = 0;
};

// The clock of the whole process: CLOCK_MONOTONIC, or a simulator's time in its place. All timers
// and all measurements use it. Code that talks to servers gets it as a `time_source`
// (engine/coroutines/time_source.h), so that a test can give one client its own time. Any thread.
class steady_clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  // The present time. Never goes back.
  static time_point now() noexcept {
    return simulated_ == nullptr ? std::chrono::steady_clock::now() : simulated_->now();
  }
  // Seconds since 1970, UTC. May be set back.
  static std::int64_t unix_seconds() noexcept {
    if (simulated_ != nullptr) return simulated_->unix_seconds();
    return std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  }
  // `time` from now, saturating at the end of time.
  static time_point after(duration time) noexcept {
    const time_point begin = now();
    return time > time_point::max() - begin ? time_point::max() : begin + time;
  }
  // The time at which a timer for `when` fires. In simulated time no timer fires at once:
  // everything that can run runs first, and then time moves.
  static time_point firing_at(time_point when) {
    if (simulated_ == nullptr || when == time_point::max()) return when;
    if (const time_point soonest = now() + duration(1); when < soonest) when = soonest;
    simulated_->wake_at(when);
    return when;
  }

 private:
  friend void simulate_clock(simulated_clock* instead);  // engine/host/seams.h
  static inline constinit simulated_clock* simulated_ = nullptr;
};

// Seconds from `then` until now. Any thread.
inline double seconds_since(steady_clock::time_point then) noexcept {
  return std::chrono::duration<double>(steady_clock::now() - then).count();
}

}  // namespace millrace
