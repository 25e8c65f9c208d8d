#include "engine/host/program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace millrace {

void open_standard_streams() {
  // open() takes the lowest free number, so each closed one is filled in turn.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    const bool is_closed = fcntl(fd, F_GETFD) < 0 && errno == EBADF;
    if (!is_closed) continue;
    // Reading from an input that is not there, and writing to such an output, fails (EBADF).
    const int mode = fd == STDIN_FILENO ? O_WRONLY : fd == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (open("/dev/null", mode) != fd) _exit(exit_code(errc::io_failed));
  }
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);
}

void check_values_given(std::span<const char* const> words) {
  for (const std::string_view word : words) {
    if (word == "--") return;  // arguments follow
    const bool is_option = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (!is_option) continue;
    throw failure(error(errc::usage, std::string(word) + " has no value")
                      .hint("write one, or leave the option out"));
  }
}

void flush_stdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw failure(error(kind_of(errno), "cannot write to stdout").cause(errno));
}

}  // namespace millrace
