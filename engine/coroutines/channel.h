#pragma once

#include <cassert>
#include <deque>
#include <optional>
#include <utility>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"

namespace millrace {

// A bounded queue between coroutines of one I/O thread.
//
//   running   push() waits for room, pop() waits for items
//   draining  after close(): push() is refused, pop() returns what is left, then nullopt
//   closed    drained, or failed: after fail() both sides get the error at once
//
// I/O thread only. Any number of coroutines may push and pop; each side is served in order.
template <class T>
class channel {
 public:
  channel(const asio::any_io_executor& executor, std::size_t capacity)
      : capacity_(capacity), changed_room_(executor), changed_items_(executor) {
    assert(capacity > 0);
  }

  // False when the channel is closed (by either side): `item` is then dropped.
  awaitable<result<bool>> push(T item) {
    while (!closed_ && !failed_ && items_.size() >= capacity_) co_await changed_room_.wait();
    if (failed_) co_return *failed_;
    if (closed_) co_return false;
    items_.push_back(std::move(item));
    changed_items_.notify_one();
    co_return true;
  }

  // nullopt: closed and empty.
  awaitable<result<std::optional<T>>> pop() {
    while (!closed_ && !failed_ && items_.empty()) co_await changed_items_.wait();
    if (failed_) co_return *failed_;
    if (items_.empty()) co_return std::optional<T>();
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    changed_room_.notify_one();
    co_return item;
  }

  // No more items will come; pop() still returns the queued ones.
  void close() {
    closed_ = true;
    changed_room_.notify_all();
    changed_items_.notify_all();
  }
  // Ends both sides with `why`; queued items are dropped. The first call counts.
  void fail(error why) {
    if (failed_) return;
    failed_ = std::move(why);
    items_.clear();
    close();
  }

  std::size_t size() const { return items_.size(); }
  bool closed() const { return closed_; }

 private:
  std::size_t capacity_;
  std::deque<T> items_;
  bool closed_ = false;
  std::optional<error> failed_;
  condition changed_room_;
  condition changed_items_;
};

}  // namespace millrace
