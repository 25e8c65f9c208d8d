#include "engine/host/standard_error.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>

namespace millrace {

void write_to_stderr(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void write_to_stderr_now(std::string_view text) noexcept {
  pollfd out{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace millrace
