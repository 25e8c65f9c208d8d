#pragma once

namespace millrace {

// A piece of work that crosses from an I/O thread to a pool and back.
class pool_task {
 public:
  virtual ~pool_task() = default;
  virtual void run() noexcept = 0;     // on a pool thread
  virtual void finish() noexcept = 0;  // afterwards, on the I/O thread that submitted it
};

}  // namespace millrace
