#include "engine/files/line_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

namespace millrace {

line_file::line_file(std::string path, std::string what)
    : path_(std::move(path)),
      what_(std::move(what)),
      // Not waiting for the reader of a pipe that has none.
      file_(host_files().open(path_, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0644)) {
  if (!file_) throw failure(cannot_write(-file_.fd()));
  end_half_line();
}

error line_file::cannot_write(int code) const {
  const char* remedy = "check that its folder exists and is writable";
  if (code == ENXIO) remedy = "start the reader of this pipe first";
  if (code == ENOSPC || code == EDQUOT) remedy = "make room";
  if (code == EPIPE || code == EAGAIN) remedy = "check the reader of this pipe";
  return error(kind_of(code), "cannot write " + what_).at(path_).cause(code).hint(remedy);
}

void line_file::end_half_line() const {
  struct stat about{};
  const bool has_text =
      host_files().stat(file_.fd(), about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0;
  if (!has_text) return;
  const held_file written(host_files().open(path_, O_RDONLY));
  if (!written) return;  // write permission need not include reading
  char last = '\n';
  const auto into = std::as_writable_bytes(std::span(&last, 1));
  const ssize_t got = read_all(written.fd(), into, static_cast<std::uint64_t>(about.st_size) - 1);
  if (got < 0) throw failure(cannot_write(static_cast<int>(-got)));
  if (last == '\n') return;
  if (auto ended = add("\n"); !ended) throw failure(ended.error());
}

// One call if the file accepts it, so that lines of several processes do not mix. A pipe may take a
// long line in parts.
result<void> line_file::add(std::string_view line) const {
  constexpr int patience_ms = 10'000;
  auto rest = std::as_bytes(std::span(line));
  while (!rest.empty()) {
    const ssize_t written = host_files().append(file_.fd(), rest);
    if (written >= 0) {
      if (written == 0) return cannot_write(ENOSPC);
      rest = rest.subspan(static_cast<std::size_t>(written));
      continue;
    }
    pollfd room{.fd = file_.fd(), .events = POLLOUT, .revents = 0};
    const bool may_go_on =
        written == -EINTR || (written == -EAGAIN && poll(&room, 1, patience_ms) == 1);
    if (!may_go_on) return cannot_write(static_cast<int>(-written));
  }
  return {};
}

result<void> line_file::sync() const {
  if (const int code = host_files().sync(file_.fd()); code != 0) return cannot_write(-code);
  return {};
}

}  // namespace millrace
