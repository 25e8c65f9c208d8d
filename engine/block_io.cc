#include "engine/block_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <cerrno>

#include "engine/log.h"
#include "engine/memory.h"
#include "engine/pread_io.h"
#include "engine/uring_io.h"

namespace millrace {
namespace {

// How many of the bytes that a read gave are kept. After a short direct read the next one must
// begin at a multiple of the alignment again: the rest of the last piece is read twice. Where there
// is not even one whole piece, and the file goes on, the page cache takes over.
std::size_t accept(open_file& file, const read_op& op, std::size_t wanted) {
  const std::size_t align = file.alignment();
  const std::size_t got = std::min(static_cast<std::size_t>(op.outcome), wanted);
  if (got == wanted || align == 1) return got;
  if (op.file_offset + got >= file.size()) return got;
  const std::size_t whole = got / align * align;
  if (whole > 0) return whole;
  file.read_through_cache();
  return got;
}

}  // namespace

awaitable<result<std::size_t>> block_io::read_at(std::shared_ptr<open_file> file,
                                                 std::uint64_t offset, std::size_t size,
                                                 buffer into, steady_clock::duration patience,
                                                 bool apart) {
  const auto executor = co_await asio::this_coro::executor;
  std::size_t done = 0;
  while (done < size) {
    const auto give_up_at = steady_clock::now() + patience;
    const std::size_t align = file->alignment();
    auto op = std::make_shared<read_op>(executor, file, into);
    op->file_offset = offset + done;
    op->buffer_offset = done;
    op->size = round_up(size - done, align);
    op->apart = apart;
    op->timer.expires_after(patience);
    submit(op);
    bool expired = false;
    if (!op->finished) {
      const auto [interrupted] = co_await op->timer.async_wait(no_throw);
      expired = !interrupted;
    }
    if (!op->finished) {
      cancel(*op);
      if (!expired) co_return error(errc::stopped, "stopped while reading").at(file->path());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience).count();
      auto why = error(errc::timed_out, fmt::format("the device gave nothing for {} s", seconds))
                     .at(file->path())
                     .offset(offset + done)
                     .skippable()
                     .hint("check the disk or the mount; MILLRACE_READ_TIMEOUT sets the limit");
      // Said now: a thread that waits for a hung device holds up an orderly end.
      log_notice(why.message());
      co_return why;
    }
    if (op->outcome == 0) break;
    if (op->outcome > 0) {
      done += accept(*file, *op, size - done);
    } else if (op->outcome == -EINVAL && align > 1) {
      file->read_through_cache();  // this file system, or this part of it, does not do direct reads
    } else if (op->outcome == -EINTR || op->outcome == -EAGAIN) {
      // The kernel is short of something for a moment. It may say so any number of times.
      if (steady_clock::now() >= give_up_at) op->outcome = -EIO;
      op->timer.expires_after(std::chrono::milliseconds(1));
      co_await op->timer.async_wait(no_throw);
    }
    const bool again =
        op->outcome == -EINTR || op->outcome == -EAGAIN || (op->outcome == -EINVAL && align > 1);
    if (op->outcome < 0 && !again) {
      co_return error(errc::io_failed, "cannot read the file")
          .at(file->path())
          .offset(offset + done)
          .cause(-op->outcome)
          .skippable()
          .hint("check the disk (dmesg, smartctl)");
    }
  }
  co_return done;
}

std::unique_ptr<block_io> make_block_io(io_thread& home, io_backend backend,
                                        bool register_buffers) {
  if (backend == io_backend::pread) return std::make_unique<pread_io>(home);
  if (const auto refused = uring_refused()) {
    if (backend == io_backend::uring) {
      throw failure(error(errc::unsupported, "MILLRACE_IO=uring, but " + *refused)
                        .hint("or set MILLRACE_IO=auto"));
    }
    log_notice(*refused + "; files are read by a pread pool");
    return std::make_unique<pread_io>(home);
  }
  return std::make_unique<uring_io>(home, register_buffers);
}

}  // namespace millrace
