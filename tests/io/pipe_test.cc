#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <map>
#include <sstream>

#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"
#include "engine/threads/io_thread.h"
#include "io/source.h"
#include "io/standard_sources.h"
#include "tests/support/movable_clock.h"
#include "tests/support/spine.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::run_on;

awaitable<void> read_pipe(scope* tasks, runtime* threads, source_registry* sources,
                          const source_options* options, std::string url, std::string* content,
                          std::optional<error>* failed) {
  source_counters counters;
  const auto memory = std::make_shared<memory_share>("test", 1_MiB, default_host_allocator());
  source_context context{*threads, threads->io(0), *tasks, memory, *options, counters};
  auto source = co_await sources->open(std::move(context), std::move(url));
  for (;;) {
    const auto piece = source ? co_await (*source)->read() : result<bytes>(source.error());
    if (!piece) {
      *failed = piece.error();
      co_return;
    }
    if (piece->empty()) co_return;
    *content += piece->text();
  }
}

// What a command can do instead of ending, at every point of its life. It reports its state at
// HERE.
struct way_to_stay {
  const char* name;
  const char* command;
};
const way_to_stay ways[] = {
    {"BeforeItsOutput", "HERE; sleep infinity"},
    {"InTheMiddle", "printf 12345; HERE; sleep infinity"},
    {"AfterClosingItsOutput", "printf 12345; exec 1>&-; HERE; sleep infinity"},
    {"AfterClosingAll", "printf 12345; exec 1>&- 2>&- 0<&-; HERE; sleep infinity"},
    {"ChildHoldsThePipe", "printf 12345; sleep infinity & HERE"},
    {"DeafToSignals",
     "trap '' TERM INT HUP; printf 12345; exec 1>&-; HERE; while :; do sleep 9; done"},
    {"StoppedInTheMiddle", "printf 12345; HERE; kill -STOP $$"},
};

class Pipe : public ::testing::TestWithParam<way_to_stay> {
 protected:
  // Reads the command's output. `when_there`, if given, is called once the command has reached
  // HERE, and everything that it wrote and closed until then has arrived.
  void read(std::string command, const std::function<void(scope&)>& when_there = {}) {
    auto& io = threads_.io(0);
    scope tasks(io.executor());
    const std::string here = "HERE";
    if (command.find(here) == std::string::npos) command = here + "; " + command;
    command.replace(command.find(here), here.size(), "echo $$ > " + (folder_ / "pid"));
    const std::string url = "pipe:" + command;
    asio::post(io.context(), [&, url] {
      tasks.spawn(read_pipe(&tasks, &threads_, &sources_, &options_, url, &content_, &failed_));
    });
    if (when_there) {
      while (pid() == 0) testing::settle(io);
      testing::settle(io, 20);
      when_there(tasks);
    }
    testing::settle(io);
    run_on(io, tasks.join());
  }
  pid_t pid() const {
    pid_t found = 0;
    std::ifstream(folder_ / "pid") >> found;
    return found;
  }
  // Neither the process nor a zombie exists.
  bool is_gone() const { return kill(pid(), 0) != 0 && errno == ESRCH; }

  testing::temporary_folder folder_;
  testing::movable_clock clock_;
  runtime threads_{{.cpu_threads = 1}};
  source_options options_{.chunk_bytes = 64_KiB, .read_timeout = 1h, .allow_pipe = true};
  source_registry sources_ = standard_sources(threads_.io(0), options_);
  std::string content_;
  std::optional<error> failed_;
};

TEST_P(Pipe, EndsByTheDeadline) {
  read(GetParam().command, [&](scope&) { clock_.move(threads_.io(0), options_.read_timeout); });
  ASSERT_TRUE(failed_);
  EXPECT_EQ(failed_->kind(), errc::timed_out);
  EXPECT_NE(failed_->message().find("MILLRACE_READ_TIMEOUT"), std::string::npos)
      << failed_->message();
  EXPECT_TRUE(is_gone());
}

TEST_P(Pipe, EndsWhenItsReaderIsStopped) {
  read(GetParam().command,
       [&](scope& tasks) { asio::post(threads_.io(0).context(), [&] { tasks.stop(); }); });
  EXPECT_TRUE(is_gone());
}

INSTANTIATE_TEST_SUITE_P(Stays, Pipe, ::testing::ValuesIn(ways),
                         [](const auto& p) { return p.param.name; });

using PipeThatEnds = Pipe;

TEST_F(PipeThatEnds, GivesItsOutputAndLeavesNobodyBehind) {
  read("(exec 1>&-; echo $$ > " + (folder_ / "other") + "; exec sleep infinity) & printf 12345");
  EXPECT_FALSE(failed_) << failed_->message();
  EXPECT_EQ(content_, "12345");
  EXPECT_TRUE(is_gone());
}

TEST_F(PipeThatEnds, FailsWithItsStatusAndWhatItSaid) {
  read("printf 12345; echo no such bucket >&2; exit 3");
  ASSERT_TRUE(failed_);
  EXPECT_NE(failed_->message().find("status 3, saying 'no such bucket'"), std::string::npos)
      << failed_->message();
  EXPECT_EQ(content_, "12345");
}

// A command of unknown status has not succeeded: in a program whose children are reaped by the
// system.
TEST_F(PipeThatEnds, FailsWhereItsStatusIsLost) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  for (const char* command : {"printf 12345; exit 7", "printf 12345"}) {
    content_.clear();
    failed_.reset();
    read(command);
    ASSERT_TRUE(failed_) << command;
    // It is gone before it can be watched, or when its status is requested.
    EXPECT_EQ(failed_->kind(), errc::io_failed) << failed_->message();
  }
  std::signal(SIGCHLD, before);
}

TEST_F(PipeThatEnds, InheritsNoDescriptorOfOurs) {
  read("ls /proc/self/fd");
  EXPECT_FALSE(failed_);
  EXPECT_EQ(content_, "0\n1\n2\n3\n");  // the last one belongs to ls
}

// Its signals are as in a shell, whatever the program and its threads do with theirs.
TEST_F(PipeThatEnds, BlocksAndIgnoresNoSignal) {
  std::map<int, void (*)(int)> before;
  for (const int signal : {SIGINT, SIGQUIT, SIGUSR1, SIGALRM, SIGWINCH, SIGPIPE}) {
    before[signal] = std::signal(signal, SIG_IGN);
  }
  read("grep -E '^Sig(Blk|Ign)' /proc/self/status");
  for (const auto& [signal, handler] : before) std::signal(signal, handler);
  EXPECT_FALSE(failed_);
  std::istringstream lines(content_);
  std::string name;
  for (std::string mask; lines >> name >> mask;) {
    // 32 and 33 belong to the C library.
    EXPECT_EQ(std::stoull(mask, nullptr, 16) & ~(3ULL << 31U), 0U) << name << mask;
  }
  EXPECT_EQ(name, "SigIgn:");
}

}  // namespace
}  // namespace millrace
