#pragma once

#include <list>
#include <memory>
#include <vector>

#include "engine/coroutines/posted_call.h"
#include "engine/files/block_io.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/worker_pool.h"

namespace millrace {

// Blocking preadv calls on a few dedicated threads: for hosts without io_uring, and for FUSE.
//
// Adjacent reads of a file form a run, which one thread at a time serves with as few calls as
// possible: pieces of one large read reach the device in order and together.
class pread_io final : public block_io {
 public:
  explicit pread_io(io_thread& home)
      : home_(home),
        here_(std::make_shared<pread_io*>(this)),
        pool_("mr-pread", threads, io_thread::max_tasks) {}
  std::string_view name() const override { return "pread"; }

  void submit(std::shared_ptr<read_op> op) override;
  // A pread in progress cannot be cancelled; its buffer stays alive until it returns.
  void cancel(read_op& op) override;

 private:
  class call;
  // Reads pass between a run and its calls without allocating.
  using op_list = std::list<std::shared_ptr<read_op>>;
  struct run {
    std::shared_ptr<open_file> file;
    std::uint64_t end = 0;
    op_list waiting;
    bool under_way = false;
  };
  using run_list = std::list<run>;

  void start_runs();
  void start(run_list::iterator which);
  void ended(run_list::iterator which);

  static constexpr int threads = 4;
  io_thread& home_;
  std::shared_ptr<pread_io*> here_;  // calls may return after this object is destroyed
  run_list runs_;
  // Reads submitted in one turn of the event loop are combined.
  const wake_up start_runs_{home_.executor(), [this] { start_runs(); }};
  worker_pool pool_;
};

}  // namespace millrace
