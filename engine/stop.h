#pragma once

#include <boost/asio/post.hpp>
#include <functional>
#include <stop_token>
#include <utility>

#include "engine/async.h"

namespace millrace {

// A stop request is std::stop_source: thread-safe, asked once, never taken back. on_stop runs
// `what` on `executor` when it is made (at once when it already was). The registration ends with
// the returned object, but a call that is already posted still runs: `what` must own what it uses.
class on_stop {
 public:
  on_stop(const std::stop_token& token, asio::any_io_executor executor, std::function<void()> what)
      : callback_(token, post_it{std::move(executor), std::move(what)}) {}

 private:
  struct post_it {
    asio::any_io_executor executor;
    std::function<void()> what;
    void operator()() const { asio::post(executor, what); }
  };
  std::stop_callback<post_it> callback_;
};

}  // namespace millrace
