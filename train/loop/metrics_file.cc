#include "train/loop/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "train/files.h"

namespace millrace {
namespace {

bool is_regular(int file) {
  struct stat about{};
  return fstat(file, &about) == 0 && S_ISREG(about.st_mode);
}

// Locks the file until the process ends. Pipes and devices may have several writers.
void lock_it(int file, const std::string& path) {
  if (!is_regular(file) || flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw failure(error(errc::io_failed, "another run writes its metrics here")
                    .at(path)
                    .hint("wait until it ends, or use another file for --metrics"));
}

// Removes the half line that a killed writer left, so that the next line does not join it; ends a
// complete line of another writer that lacks its newline.
void end_last_line(int file, const std::string& path) {
  if (!is_regular(file)) return;
  const off_t size = lseek(file, 0, SEEK_END);
  off_t end = size;
  for (char last = '\0'; end > 0; --end) {
    if (pread(file, &last, 1, end - 1) != 1) {
      throw failure(error(kind_of(errno), "cannot read its last line").at(path).cause(errno));
    }
    if (last == '\n') break;
  }
  if (end == size) return;
  std::string line(static_cast<std::size_t>(size - end), '\0');
  const bool is_read = pread(file, line.data(), line.size(), end) == std::ssize(line);
  if (is_read && nlohmann::json::accept(line)) {
    if (write(file, "\n", 1) == 1) return;
    throw failure(cannot_write("metrics", path, errno));
  }
  if (!is_read || ftruncate(file, end) != 0) {
    throw failure(error(kind_of(errno), "cannot remove an incomplete line").at(path).cause(errno));
  }
}

}  // namespace

metrics_file::~metrics_file() {
  if (file_ >= 0) close(file_);
}

void metrics_file::open(const std::string& path, bool append) {
  path_ = path;
  struct stat about{};
  const bool is_file = stat(path.c_str(), &about) != 0 || S_ISREG(about.st_mode);
  // Never opens a pipe for reading too: then a vanished reader would go unnoticed.
  const int how = is_file ? O_RDWR | O_CREAT | O_APPEND : O_WRONLY | O_NONBLOCK;
  file_ = ::open(path.c_str(), how | O_CLOEXEC, 0644);
  if (file_ < 0) {
    const int code = errno;
    error why = cannot_write("metrics", path, code);
    if (code == ENXIO) why.hint("start the reader of this pipe first");
    throw failure(why);
  }
  lock_it(file_, path);
  if (append) {
    end_last_line(file_, path);
  } else if (is_regular(file_) && ftruncate(file_, 0) != 0) {
    throw failure(error(kind_of(errno), "cannot replace the metrics").at(path).cause(errno));
  }
}

// The number of bytes written; if not all, errno says why.
std::size_t metrics_file::write_some(std::string_view text) const {
  // A reader that has kept the run waiting once does not get a second wait.
  const int patience_ms = unwritten_ == 0 ? 10'000 : 0;
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(file_, text.data() + done, text.size() - done);
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    pollfd room{.fd = file_, .events = POLLOUT, .revents = 0};
    if (errno != EAGAIN || poll(&room, 1, patience_ms) != 1) break;
  }
  return done;
}

void metrics_file::add(const std::string& line) {
  if (file_ < 0) return;
  const std::string whole = (is_in_line_ ? "\n" : "") + line + '\n';
  const off_t before = lseek(file_, 0, SEEK_END);
  const std::size_t written = write_some(whole);
  const int why = errno;
  if (written > 0) is_in_line_ = before < 0 && written < whole.size();
  if (written == whole.size()) return;
  if (written > 0 && before >= 0) {
    [[maybe_unused]] const int cut = ftruncate(file_, before);
  }
  if (unwritten_++ == 0) {
    log_notice(
        fmt::format("cannot write to {} ({}): lines will be missing until writing succeeds "
                    "again",
                    path_, std::strerror(why)));
  }
}

void metrics_file::check_written() const {
  if (unwritten_ == 0) return;
  throw failure(
      error(errc::io_failed, counted(unwritten_, "line") + " of metrics could not be written")
          .at(path_)
          .hint("free some space, or write them to another disk"));
}

}  // namespace millrace
