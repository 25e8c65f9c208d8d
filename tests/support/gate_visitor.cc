// Enters a read gate again and again, and reports it: for the tests that kill and stop processes.
//
//   gate_visitor FOLDER PATIENCE_MS    prints "in" and "out" lines; appends them, with the process
//                                      id, to FOLDER/log, so that they are there in one order
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "engine/coroutines/timer.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/runtime.h"
#include "io/disks/read_gate.h"
#include "tests/support/spine.h"

namespace {

using namespace millrace;
using namespace std::chrono_literals;

void say(int log, const char* what) {
  const std::string line = fmt::format("{} {}\n", getpid(), what);
  if (write(log, line.data(), line.size()) < 0) std::abort();
  fmt::print("{}\n", what);
  std::fflush(stdout);
}

awaitable<void> visit_for_ever(std::shared_ptr<read_gate> gate, int log) {
  for (;;) {
    const auto permit = co_await gate->enter([] { return std::size_t{0}; });
    say(log, "in");
    co_await sleep_for(2ms);
    say(log, "out");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[1];
  const int log = open((folder + "/log").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  runtime threads({.cpu_threads = 1});
  const auto gate = std::make_shared<read_gate>(
      threads.io(0).executor(),
      gate_options{folder, "disk", 1, std::chrono::milliseconds(std::atoi(argv[2]))});
  millrace::testing::run_on(threads.io(0), visit_for_ever(gate, log));
}
