#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "engine/memory/bytes.h"

namespace millrace {

// The chunks of one object that are under way or ready, in order. The reader takes them from the
// front; the read-ahead adds them at the back and fills them in any order.
//
// One I/O thread.
class read_window {
 public:
  struct chunk {
    std::size_t size = 0;
    bool done = false;
    bytes data;
    std::optional<error> failed;
    scope::task task;  // fills this chunk
  };

  explicit read_window(const asio::any_io_executor& executor)
      : arrived_(executor), changed_(executor) {}

  std::shared_ptr<chunk> add(std::size_t size) {
    bytes_ += size;
    return chunks_.emplace_back(std::make_shared<chunk>(chunk{.size = size}));
  }
  void fill(chunk& which, bytes data) {
    which.data = std::move(data);
    which.done = true;
    arrived_.notify_all();
  }
  void fail(chunk& which, error why) {
    which.failed = std::move(why);
    which.done = true;
    arrived_.notify_all();
  }
  // No more chunks will be added. `why`: the error that ended the object.
  void end(std::optional<error> why = std::nullopt) {
    ended_ = true;
    failed_ = std::move(why);
    arrived_.notify_all();
  }

  // The bytes of the next chunk; empty at the end.
  awaitable<result<bytes>> take() {
    for (;;) {
      if (!chunks_.empty() && chunks_.front()->done) break;
      if (chunks_.empty() && failed_) co_return *failed_;
      if (chunks_.empty() && ended_) co_return bytes();
      late_ = late_ || (has_given_ && !starving_);
      starving_ = true;
      changed_.notify_all();
      co_await arrived_.wait();
    }
    starving_ = false;
    const auto first = std::move(chunks_.front());
    chunks_.pop_front();
    bytes_ -= first->size;
    changed_.notify_all();
    has_given_ = true;
    if (first->failed) co_return *first->failed;
    co_return std::move(first->data);
  }

  std::size_t chunks() const { return chunks_.size(); }
  std::size_t bytes_ahead() const { return bytes_; }
  // Whether the reader waits and no chunk is being read.
  bool starving() const { return starving_ && chunks_.empty(); }
  // Whether the reader has begun to wait for a chunk, other than the first, since the last call.
  bool take_late() { return std::exchange(late_, false); }
  // Waits until a chunk is taken, or the reader waits for one.
  awaitable<void> changed() { return changed_.wait(); }

  // Stops the reads under way.
  void stop() {
    for (const auto& c : chunks_) c->task.stop();
  }

 private:
  std::deque<std::shared_ptr<chunk>> chunks_;
  std::size_t bytes_ = 0;
  bool starving_ = false;
  bool has_given_ = false;
  bool late_ = false;
  bool ended_ = false;
  std::optional<error> failed_;
  condition arrived_;
  condition changed_;
};

}  // namespace millrace
