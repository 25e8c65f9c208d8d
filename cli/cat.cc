#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "cli/command.h"
#include "pipeline/prefetch.h"
#include "pipeline/raw_bytes.h"

namespace millrace::cli {
namespace {

// More in the pipe: fewer switches between this process and its reader. Of what was tried this
// gains most; vmsplice would gain as much again, but hands out pages that are written to again
// while a reader that splices them on still shows them (docs/decisions.md, 18).
void widen_pipe() {
  constexpr int pipe_bytes = 1 << 18;  // no more than a core's cache holds
  fcntl(STDOUT_FILENO, F_SETPIPE_SZ, pipe_bytes);
}

void write_all(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = write(STDOUT_FILENO, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failure(error(errc::io_failed, "cannot write to stdout").cause(errno));
    data = data.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace

action add_cat(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cat", "bytes to stdout, through the engine");
  auto arguments = std::make_shared<shard_arguments>();
  arguments->add_to(*command);
  return [arguments](const environment& e) {
    // A reader that has seen enough ends this by SIGPIPE, quietly, whatever the parent ignores.
    std::signal(SIGPIPE, SIG_DFL);
    widen_pipe();
    engine eng(arguments->engine(e));
    for (auto data = eng.run(raw_bytes(arguments->urls(e))); auto piece = data.next();) {
      write_all(piece->span());
    }
    return 0;
  };
}

}  // namespace millrace::cli
