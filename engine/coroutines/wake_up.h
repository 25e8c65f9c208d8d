#pragma once

#include <functional>
#include <memory>

namespace millrace {

class io_executor;
class posted_call;

// Calls a function on an I/O thread; requesting the call needs no memory (posted_call). A pending
// call outlives this object: `what` must own what it uses, or the owner must wait until the I/O
// thread has run it. `what` must not throw.
class wake_up {
 public:
  wake_up() = default;
  wake_up(const io_executor& home, std::function<void()> what);
  // Any thread.
  void ask() const noexcept;

 private:
  std::shared_ptr<posted_call> call_;
};

}  // namespace millrace
