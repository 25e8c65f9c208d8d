#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/files/block_io.h"
#include "engine/threads/pread_io.h"

namespace millrace {

// File reads through a ring of this I/O thread. Submissions of one turn of the event loop go to the
// kernel in one call; with a full submission queue reads wait in order. The ring's pollable fd
// announces completions; they are copied out before any is handled, so that none runs inside
// another.
//
// With `register_buffers`, buffers from read_block_allocator are pinned once for all reads, as far
// as locked memory allows. With huge pages this gains nothing (docs/decisions.md, 17).
class uring_io final : public block_io {
 public:
  uring_io(io_thread& home, bool register_buffers);
  ~uring_io() override;
  uring_io(const uring_io&) = delete;
  uring_io& operator=(const uring_io&) = delete;

  std::string_view name() const override { return "uring"; }
  void stop() override;
  void submit(std::shared_ptr<read_op> op) override;
  void cancel(read_op& op) override;

 private:
  struct ring;
  void flush_later();
  void flush();
  void flush_after(std::chrono::milliseconds pause);
  void watch();
  void drain();
  bool prepare(const std::shared_ptr<read_op>& op);
  bool prepare_or_refuse(const std::shared_ptr<read_op>& op);
  void register_new_arenas();
  std::optional<int> registered(const std::byte* data, std::size_t size);

  io_thread& home_;
  std::unique_ptr<ring> ring_;
  std::unique_ptr<pread_io> for_fuse_;            // created for the first file on FUSE
  std::deque<std::shared_ptr<read_op>> waiting_;  // for room in the submission queue
  std::unordered_map<read_op*, std::shared_ptr<read_op>> in_kernel_;
  bool registering_;
  std::vector<std::span<std::byte>>
      registered_;  // of the arena with this index: as much as is pinned
  const wake_up flush_{home_.executor(), [this] { flush(); }};
  bool is_refused_ = false;  // the kernel refused the last submission
  steady_timer refused_;     // until a refused submission is retried
  std::chrono::milliseconds pause_{1};
  bool watching_ = false;
  bool stopped_ = false;
};

// nullopt when io_uring works here, else the reason. Throws `failure` (no_descriptors).
std::optional<std::string> uring_refused();

}  // namespace millrace
