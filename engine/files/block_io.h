#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/files/open_file.h"
#include "engine/memory/bytes.h"

namespace millrace {

// A read in flight. The backend keeps it alive until it finishes, so that an abandoned read (after
// a deadline or a stop) never writes into memory that has been reused.
struct read_op {
  read_op(const asio::any_io_executor& executor, std::shared_ptr<open_file> of, buffer to)
      : file(std::move(of)), into(std::move(to)), timer(executor) {}

  std::shared_ptr<open_file> file;
  buffer into;
  std::uint64_t file_offset = 0;
  std::size_t buffer_offset = 0;
  std::size_t size = 0;
  int outcome = 0;  // bytes read, or -errno
  bool finished = false;
  bool apart = false;  // must not be joined with earlier reads into one call
  steady_timer timer;  // the deadline; cancelled when finished

  void finish(int how) {
    outcome = how;
    finished = true;
    timer.cancel();
  }
};

// Reads of files on one I/O thread. All calls on that thread.
class block_io {
 public:
  virtual ~block_io() = default;

  // Reads `size` bytes at `offset` of `file`, whose descriptor must be open, into the front of
  // `into`. Retries short reads, EINTR and EAGAIN; fewer bytes than asked for means that the file
  // ended. Fails with io_failed (EIO), or with timed_out when no byte came for `patience`, however
  // often the kernel answered.
  //
  // Adjacent reads requested together may reach the device as one, unless `apart`.
  awaitable<result<std::size_t>> read_at(std::shared_ptr<open_file> file, std::uint64_t offset,
                                         std::size_t size, buffer into,
                                         steady_clock::duration patience, bool apart = false);

  // "uring" or "pread".
  virtual std::string_view name() const = 0;
  virtual void stop() {}

 protected:
  // Starts `op`; calls op->finish() on this thread later, never before submit() has returned.
  virtual void submit(std::shared_ptr<read_op> op) = 0;
  // Asks for an early end of `op`, which still must finish().
  virtual void cancel(read_op& op) = 0;
};

}  // namespace millrace
