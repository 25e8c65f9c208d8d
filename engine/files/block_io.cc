#include "engine/files/block_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/host/log.h"

namespace millrace {
namespace {

// The number of bytes kept of a read's result. After a short direct read the next one must begin at
// a multiple of the alignment, so the rest of the last block is read twice. Without even one whole
// block before the end of the file, the page cache is used instead.
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

constexpr auto first_pause = std::chrono::milliseconds(1);
constexpr auto most_pause = std::chrono::milliseconds(100);

bool is_passing(int outcome) {
  return outcome == -EINTR || outcome == -EAGAIN;
}

error silent(const open_file& file, std::uint64_t at, steady_clock::duration patience) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience).count();
  auto why = error(errc::timed_out, fmt::format("the device returned nothing for {} s", seconds))
                 .at(file.path())
                 .offset(at)
                 .skippable()
                 .hint(
                     "check the disk or the mount; source_options.read_timeout "
                     "(MILLRACE_READ_TIMEOUT) sets the limit");
  // Logged now: a thread that waits for a hung device delays an orderly end.
  log_notice(why.message());
  return why;
}

}  // namespace

awaitable<result<std::size_t>> block_io::read_at(std::shared_ptr<open_file> file,
                                                 std::uint64_t offset, std::size_t size,
                                                 buffer into, steady_clock::duration patience,
                                                 bool apart) {
  const auto executor = co_await this_executor;
  std::size_t done = 0;
  auto give_up_at = steady_clock::now() + patience;  // counted from the last byte received
  steady_clock::duration pause = first_pause;
  while (done < size) {
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
      co_return silent(*file, offset + done, patience);
    }
    if (op->outcome == 0) break;
    if (op->outcome > 0) {
      done += accept(*file, *op, size - done);
      give_up_at = steady_clock::now() + patience;
      pause = first_pause;
    } else if (op->outcome == -EINVAL && align > 1) {
      file->read_through_cache();  // direct reads are not possible here
    } else if (is_passing(op->outcome)) {
      // The kernel lacks some resource for now, which may repeat any number of times.
      if (steady_clock::now() >= give_up_at) co_return silent(*file, offset + done, patience);
      op->timer.expires_after(
          std::exchange(pause, std::min<steady_clock::duration>(2 * pause, most_pause)));
      const auto [interrupted] = co_await op->timer.async_wait(no_throw);
      if (interrupted) co_return error(errc::stopped, "stopped while reading").at(file->path());
    }
    const bool again = is_passing(op->outcome) || (op->outcome == -EINVAL && align > 1);
    if (op->outcome == -ENOMEM) co_return out_of_memory().at(file->path()).offset(offset + done);
    if (op->outcome < 0 && !again) {
      co_return error(kind_of(-op->outcome), "cannot read the file")
          .at(file->path())
          .offset(offset + done)
          .cause(-op->outcome)
          .skippable()
          .hint("check the disk (dmesg, smartctl)");
    }
  }
  co_return done;
}

}  // namespace millrace
