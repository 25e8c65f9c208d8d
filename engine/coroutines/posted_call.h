#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <memory>

#include "engine/base/process_wide.h"
#include "engine/coroutines/wake_up.h"

namespace millrace {

namespace asio = boost::asio;

// A call on an I/O thread. Posting it needs no memory, so post() cannot fail and clean-up and error
// paths can use it. Held by shared_ptr; a pending call keeps its object alive.
class posted_call : public std::enable_shared_from_this<posted_call> {
 public:
  // `home`: of an I/O thread.
  explicit posted_call(const asio::any_io_executor& home);
  virtual ~posted_call() = default;
  posted_call(const posted_call&) = delete;
  posted_call& operator=(const posted_call&) = delete;

  // Any thread. If posted again before it has begun, it runs once. Does nothing in a forked child,
  // which lacks the I/O thread.
  void post() noexcept;
  // Whether the calling thread is the I/O thread, in one of its calls.
  bool is_at_home() const { return home_.running_in_this_thread(); }

 protected:
  // On the I/O thread. Throws nothing.
  virtual void run() = 0;

 private:
  template <class T>
  struct room_allocator;
  struct handler;

  asio::io_context::executor_type home_;
  home_process process_;
  std::atomic<bool> asked_ = false;
  alignas(std::max_align_t) std::byte room_[128];
};

}  // namespace millrace
