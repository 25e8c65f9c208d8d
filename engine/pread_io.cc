#include "engine/pread_io.h"

#include <unistd.h>

#include <cerrno>

#include "engine/io_thread.h"

namespace millrace {
namespace {

class pread_task final : public pool_task {
 public:
  explicit pread_task(std::shared_ptr<read_op> op) : op_(std::move(op)) {}
  void run() noexcept override {
    const ssize_t n = ::pread(op_->file->fd(), op_->into.data() + op_->buffer_offset, op_->size,
                              static_cast<off_t>(op_->file_offset));
    outcome_ = n < 0 ? -errno : static_cast<int>(n);
  }
  void finish() noexcept override {
    op_->finish(outcome_);
    delete this;
  }

 private:
  std::shared_ptr<read_op> op_;
  int outcome_ = 0;
};

}  // namespace

void pread_io::submit(std::shared_ptr<read_op> op) {
  // pread returns at most 2 GiB; the caller goes on with the rest.
  op->size = std::min<std::size_t>(op->size, std::size_t{1} << 30);
  auto* task = new pread_task(op);
  if (!home_.submit(pool_, task)) {
    delete task;
    op->outcome = -EAGAIN;  // asked again by read_at
    op->finished = true;
  }
}

}  // namespace millrace
