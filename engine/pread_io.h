#pragma once

#include "engine/block_io.h"
#include "engine/io_thread.h"
#include "engine/worker_pool.h"

namespace millrace {

// Blocking pread calls on a few threads of their own: for hosts without io_uring, and for FUSE.
class pread_io final : public block_io {
 public:
  explicit pread_io(io_thread& home)
      : home_(home), pool_("mr-pread", threads, io_thread::max_tasks) {}
  std::string_view name() const override { return "pread"; }

  void submit(std::shared_ptr<read_op> op) override;
  // A pread under way cannot be called back; its buffer stays alive until it returns.
  void cancel(read_op&) override {}

 private:
  static constexpr int threads = 4;
  io_thread& home_;
  worker_pool pool_;
};

}  // namespace millrace
