#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stop_token>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "pipeline/stages/prefetch.h"
#include "pipeline/stages/raw_bytes.h"

namespace millrace::cli {
namespace {

// A larger pipe needs fewer context switches between this process and its reader. Only vmsplice
// was faster, but its pages are reused while a reader that splices them may still show them
// (docs/decisions.md, 18).
void widen_pipe() {
  constexpr int pipe_bytes = 1 << 18;  // no more than a core's cache holds
  fcntl(STDOUT_FILENO, F_SETPIPE_SZ, pipe_bytes);
}

void write_all(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = write(STDOUT_FILENO, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failure(error(kind_of(errno), "cannot write to stdout").cause(errno));
    data = data.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace

action add_cat(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cat", "copies the bytes of files and objects to stdout");
  auto arguments = std::make_shared<shard_arguments>();
  arguments->add_to(*command);
  auto json = std::make_shared<bool>();
  command
      ->add_flag("--json", *json,
                 "print one JSON object as the last line of stderr, since stdout has the bytes")
      ->group("Output");
  command->footer(
      "Example, as a source of Python's WebDataset:\n  pipe:millrace cat train-000000.tar");
  return [arguments, json](const environment& e) {
    // When the reader closes the pipe, SIGPIPE ends this quietly, even if the parent ignores it.
    std::signal(SIGPIPE, SIG_DFL);
    widen_pipe();
    const auto urls = arguments->urls(e);
    engine eng(arguments->engine(e));
    std::atomic<std::uint64_t> bytes = 0;
    const auto tell = [&](bool interrupted) {
      print_json({{"urls", urls.size()}, {"bytes", bytes.load()}, {"interrupted", interrupted}},
                 stderr);
    };
    // The reader may have stopped reading, so this waits for nothing.
    const std::stop_callback stopping(*json ? stop_requested() : std::stop_token(), [&] {
      tell(true);
      std::_Exit(exit_code_of_interrupt());
    });
    progress shown("cat", sample_walk::work_of(urls), [&] { return work_done{bytes, 0}; });
    for (auto data = eng.run(raw_bytes(urls)); auto piece = data.next();) {
      write_all(piece->span());
      bytes += piece->size();
    }
    shown.end();
    if (*json) tell(false);
    return 0;
  };
}

}  // namespace millrace::cli
