#pragma once

#include <memory>
#include <optional>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"

namespace millrace {

// A call whose answer all have that ask for it while it is under way: of many connections that need
// a token, one fetches it.
//
//   auto token = co_await fetched_([&] { return fetch(tasks); });
//
// Nothing is kept once it has ended. I/O thread only. Must outlive its callers. A caller that is
// asked to stop leaves the call, if it is another's; if it is its own, the call is made again for
// the others.
template <class T>
class shared_call {
 public:
  // `make` returns an awaitable<result<T>>.
  template <class Make>
  awaitable<result<T>> operator()(Make make) {
    if (!ended_) ended_.emplace(co_await this_executor);
    while (const auto call = under_way_) {
      co_await ended_->wait();
      if (*call) co_return **call;
    }
    const turn mine(*this);
    *mine.call = co_await make();
    co_return **mine.call;
  }

 private:
  using answer = std::optional<result<T>>;  // none: under way, or given up

  struct turn {
    shared_call& of;
    std::shared_ptr<answer> call = std::make_shared<answer>();
    explicit turn(shared_call& c) : of(c) { of.under_way_ = call; }
    ~turn() {
      of.under_way_.reset();
      of.ended_->notify_all();
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
  };

  std::shared_ptr<answer> under_way_;
  std::optional<condition> ended_;
};

}  // namespace millrace
