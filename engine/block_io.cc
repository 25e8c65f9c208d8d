#include "engine/block_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <cerrno>

#include "engine/log.h"
#include "engine/pread_io.h"
#include "engine/uring_io.h"

namespace millrace {
namespace {

#ifndef FUSE_SUPER_MAGIC
constexpr long FUSE_SUPER_MAGIC = 0x65735546;
#endif

error open_error(const std::string& path, int why) {
  switch (why) {
    case ENOENT:
    case ENOTDIR:
      return error(errc::not_found, "no such file")
          .at(path)
          .cause(why)
          .skippable()
          .hint("check the path and the brace range");
    case EACCES:
    case EPERM:
      return error(errc::not_allowed, "may not read the file")
          .at(path)
          .cause(why)
          .skippable()
          .hint("check the permissions");
    default:
      return error(errc::io_failed, "cannot open the file").at(path).cause(why).skippable();
  }
}

}  // namespace

result<std::shared_ptr<const open_file>> open_file::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return open_error(path, errno);
  struct stat info{};
  struct statfs fs{};
  if (fstat(fd, &info) != 0 || fstatfs(fd, &fs) != 0) {
    const int why = errno;
    ::close(fd);
    return open_error(path, why);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return error(errc::usage, S_ISDIR(info.st_mode) ? "is a folder" : "is not a regular file")
        .at(path)
        .hint("name the shards themselves, for instance with a brace range");
  }
  return std::make_shared<const open_file>(fd, path, static_cast<std::uint64_t>(info.st_size),
                                           fs.f_type == FUSE_SUPER_MAGIC);
}

open_file::~open_file() {
  ::close(fd_);
}

awaitable<result<std::size_t>> block_io::read_at(std::shared_ptr<const open_file> file,
                                                 std::uint64_t offset, std::size_t size,
                                                 buffer into, steady_clock::duration patience) {
  const auto executor = co_await asio::this_coro::executor;
  std::size_t done = 0;
  while (done < size) {
    const auto give_up_at = steady_clock::now() + patience;
    auto op = std::make_shared<read_op>(executor, file, into);
    op->file_offset = offset + done;
    op->buffer_offset = done;
    op->size = size - done;
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
      co_return error(errc::timed_out, fmt::format("the device gave nothing for {} s", seconds))
          .at(file->path())
          .offset(offset + done)
          .skippable()
          .hint("check the disk or the mount; MILLRACE_READ_TIMEOUT sets the limit");
    }
    if (op->outcome == 0) break;
    if (op->outcome > 0) {
      done += static_cast<std::size_t>(op->outcome);
    } else if (op->outcome == -EINTR || op->outcome == -EAGAIN) {
      // The kernel is short of something for a moment. It may say so any number of times.
      if (steady_clock::now() >= give_up_at) op->outcome = -EIO;
      op->timer.expires_after(std::chrono::milliseconds(1));
      co_await op->timer.async_wait(no_throw);
    }
    if (op->outcome < 0 && op->outcome != -EINTR && op->outcome != -EAGAIN) {
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

std::unique_ptr<block_io> make_block_io(io_thread& home, io_backend backend) {
  if (backend == io_backend::pread) return std::make_unique<pread_io>(home);
  if (const auto refused = uring_refused()) {
    if (backend == io_backend::uring) {
      throw failure(error(errc::unsupported, "MILLRACE_IO=uring, but " + *refused)
                        .hint("or set MILLRACE_IO=auto"));
    }
    log_notice(*refused + "; files are read by a pread pool");
    return std::make_unique<pread_io>(home);
  }
  return std::make_unique<uring_io>(home);
}

}  // namespace millrace
