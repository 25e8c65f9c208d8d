#pragma once

#include <functional>
#include <stop_token>
#include <utility>

#include "engine/wake_up.h"

namespace millrace {

// A stop request is std::stop_source: thread-safe, asked once, never taken back. on_stop runs
// `what` on `executor` when it is made (at once when it already was). Destroying the returned
// object ends the registration, but a call that is already posted still runs: `what` must own what
// it uses.
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
