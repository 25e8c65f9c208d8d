#pragma once

#include <functional>
#include <stop_token>
#include <utility>

#include "engine/coroutines/wake_up.h"

namespace millrace {

// A stop request is a std::stop_source: thread-safe, requested once, never withdrawn. on_stop runs
// `what` on `executor` when stop is requested (at once if it already was). Destroying the returned
// object ends the registration, but a call already posted still runs: `what` must own what it uses.
class on_stop {
 public:
  on_stop(const std::stop_token& token, const io_executor& executor, std::function<void()> what)
      : callback_(token, post_it{wake_up(executor, std::move(what))}) {}

 private:
  struct post_it {
    wake_up call;
    void operator()() const { call.ask(); }
  };
  std::stop_callback<post_it> callback_;
};

}  // namespace millrace
