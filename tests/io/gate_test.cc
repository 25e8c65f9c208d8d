#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/coroutines/timer.h"
#include "engine/files/file_system.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/runtime.h"
#include "io/disks/read_gate.h"
#include "tests/support/movable_clock.h"
#include "tests/support/spine.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::run_on;
using testing::settle;

class GateFile : public ::testing::Test {
 protected:
  std::unique_ptr<gate_file> participant(int permits = 1) {
    return gate_file::open(folder_ / "", "disk", permits).value();
  }
  testing::temporary_folder folder_;
};

TEST_F(GateFile, LetsParticipantsInAsTheyCame) {
  const auto a = participant();
  const auto b = participant();
  const auto c = participant();
  a->queue();
  b->queue();
  c->queue();
  EXPECT_FALSE(b->try_enter());
  const auto place = a->try_enter();
  ASSERT_TRUE(place);
  EXPECT_FALSE(b->try_enter());
  a->queue();  // after the others
  a->leave(*place);
  EXPECT_FALSE(c->try_enter());
  EXPECT_FALSE(a->try_enter());
  EXPECT_TRUE(b->try_enter());
  EXPECT_EQ(b->last_entered(), getpid());
}

TEST_F(GateFile, WhoLeavesTheQueueHoldsUpNobody) {
  const auto a = participant();
  const auto b = participant();
  a->queue();
  b->queue();
  a->leave_queue();
  EXPECT_TRUE(b->try_enter());
}

TEST_F(GateFile, HasAsManyPlacesAsPermits) {
  const auto a = participant(2);
  const auto b = participant(2);
  const auto c = participant(2);
  for (const auto* p : {&a, &b, &c}) (*p)->queue();
  EXPECT_TRUE(a->try_enter());
  EXPECT_TRUE(b->try_enter());
  EXPECT_FALSE(c->try_enter());
  a->queue();
  EXPECT_FALSE(c->try_enter());
}

TEST_F(GateFile, AParticipantThatEndsLeavesNothingBehind) {
  const auto a = participant();
  {
    const auto b = participant();
    b->queue();
    EXPECT_TRUE(b->try_enter());
    const auto c = participant();
    c->queue();
    a->queue();
    EXPECT_FALSE(a->try_enter());
    EXPECT_FALSE(a->idle());
  }
  EXPECT_TRUE(a->try_enter());
  EXPECT_TRUE(a->idle());
}

TEST_F(GateFile, IsForAllUsersWhateverTheUmask) {
  const mode_t before = umask(077);
  const auto a = participant();
  umask(before);
  struct stat info{};
  ASSERT_EQ(stat(a->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0666U);
}

TEST_F(GateFile, MakesItsFolderAsTmpIs) {
  const std::string folder = folder_ / "gates";
  ASSERT_TRUE(gate_file::open(folder, "disk", 1));
  struct stat info{};
  ASSERT_EQ(stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 01777U);
}

TEST_F(GateFile, RefusesTraps) {
  const auto victim = folder_.write("victim", "keep me");
  ASSERT_EQ(symlink(victim.c_str(), (folder_ / "millrace-gate-link").c_str()), 0);
  ASSERT_EQ(link(victim.c_str(), (folder_ / "millrace-gate-hard").c_str()), 0);
  ASSERT_EQ(mkfifo((folder_ / "millrace-gate-fifo").c_str(), 0666), 0);
  for (const char* trap : {"link", "hard", "fifo"}) {
    EXPECT_FALSE(gate_file::open(folder_ / "", trap, 1)) << trap;
  }
  EXPECT_EQ(std::filesystem::file_size(victim), 7U);
}

// Any user can give the file a second name.
TEST_F(GateFile, ASecondNameTurnsNothingOff) {
  auto a = participant();
  a->queue();
  ASSERT_TRUE(a->try_enter());  // its content is a process id now
  ASSERT_EQ(link(a->path().c_str(), (folder_ / "second").c_str()), 0);
  const auto b = participant();
  b->queue();
  EXPECT_FALSE(b->try_enter());
  // The name now belongs to another file: the old file, under its second name, blocks nothing.
  unlink(b->path().c_str());
  EXPECT_TRUE(b->orphaned());
  const auto c = participant();
  EXPECT_TRUE(b->orphaned());
  EXPECT_FALSE(c->orphaned());
}

TEST_F(GateFile, KnowsWhenItsNameIsGone) {
  const auto a = participant();
  EXPECT_FALSE(a->orphaned());
  unlink(a->path().c_str());
  EXPECT_TRUE(a->orphaned());
}

awaitable<void> called(const std::function<void()>* what) {
  (*what)();
  co_return;
}

// The gates of several processes, in one.
class Gate : public ::testing::Test {
 protected:
  Gate() {
    set_log_sink([this](std::string_view line) {
      const std::scoped_lock lock(mutex_);
      said_ += std::string(line) + "\n";
    });
  }
  ~Gate() override { set_log_sink({}); }
  static constexpr steady_clock::duration patience = 60s;

  std::shared_ptr<read_gate> gate(int permits = 1) {
    return std::make_shared<read_gate>(threads_.io(0).executor(),
                                       gate_options{folder_ / "gates", "disk", permits, patience});
  }
  std::string said() {
    const std::scoped_lock lock(mutex_);
    return said_;
  }
  // Runs `work` to its end, while time moves by `step`; calls `before_each` before each move.
  // Returns the number of moves.
  int run_for(
      awaitable<void> work, steady_clock::duration step,
      const std::function<void()>& before_each = [] {}) {
    io_thread& io = threads_.io(0);
    auto ended = spawn_on(io.executor(), std::move(work));
    int moves = 0;
    settle(io);
    for (; ended.wait_for(0s) != std::future_status::ready; ++moves) {
      spawn_on(io.executor(), called(&before_each)).get();
      clock_.move(io, step);
      settle(io);
    }
    ended.get();
    return moves;
  }

  testing::temporary_folder folder_;
  std::mutex mutex_;
  std::string said_;
  testing::movable_clock clock_;
  runtime threads_{{.cpu_threads = 1}};
};

struct visit_log {
  std::string order;
  int inside = 0;
  int most = 0;
};

awaitable<void> visit(std::shared_ptr<read_gate> gate, char name, std::size_t ready,
                      visit_log* log) {
  auto permit = co_await gate->enter([ready] { return ready; });
  log->order += name;
  log->most = std::max(log->most, ++log->inside);
  co_await sleep_for(1ms);
  --log->inside;
}

awaitable<void> join_all(scope* tasks) {
  co_await tasks->join();
}

// Runs `spawn` on the thread, then waits for everything that it has spawned.
template <class F>
void run_all(io_thread& io, F spawn) {
  scope tasks(io.executor());
  std::promise<void> spawned;
  asio::post(io.context(), [&] {
    spawn(tasks);
    spawned.set_value();
  });
  spawned.get_future().get();
  run_on(io, join_all(&tasks));
}

TEST_F(Gate, OneAtATimeAcrossGatesAndReaders) {
  visit_log log;
  run_all(threads_.io(0), [&](scope& tasks) {
    for (int g = 0; g < 4; ++g) {
      const auto mine = gate();
      for (int i = 0; i < 5; ++i) tasks.spawn(visit(mine, 'x', 0, &log));
    }
  });
  EXPECT_EQ(log.order.size(), 20U);
  EXPECT_EQ(log.most, 1);
}

TEST_F(Gate, AsManyAtOnceAsPermits) {
  visit_log log;
  run_all(threads_.io(0), [&](scope& tasks) {
    const auto a = gate(3);
    const auto b = gate(3);
    for (int i = 0; i < 10; ++i) tasks.spawn(visit(i % 2 == 0 ? a : b, 'x', 0, &log));
  });
  EXPECT_EQ(log.order.size(), 10U);
  EXPECT_EQ(log.most, 3);
}

TEST_F(Gate, WhoIsNearestToStarvingGoesFirst) {
  visit_log log;
  run_all(threads_.io(0), [&](scope& tasks) {
    const auto mine = gate();
    tasks.spawn(visit(mine, 'a', 0, &log));  // enters at once
    tasks.spawn(visit(mine, 'b', 300, &log));
    tasks.spawn(visit(mine, 'c', 100, &log));
    tasks.spawn(visit(mine, 'd', 200, &log));
  });
  EXPECT_EQ(log.order, "acdb");
}

awaitable<void> visit_again_and_again(std::shared_ptr<read_gate> gate, int times, visit_log* log) {
  for (int i = 0; i < times; ++i) co_await visit(gate, 'h', 0, log);
}

TEST_F(Gate, NobodyIsPassedOverForEver) {
  visit_log log;
  run_all(threads_.io(0), [&](scope& tasks) {
    const auto mine = gate();
    for (int i = 0; i < 2; ++i) tasks.spawn(visit_again_and_again(mine, 50, &log));
    tasks.spawn(visit(mine, 's', 1'000'000, &log));
  });
  EXPECT_LT(log.order.find('s'), 20U);
}

awaitable<void> visit_until_stopped(std::shared_ptr<read_gate> gate, std::atomic<bool>* inside) {
  auto permit = co_await gate->enter([] { return std::size_t{0}; });
  *inside = true;
  steady_timer forever(co_await this_executor, 1h);
  co_await forever.async_wait(no_throw);
}

TEST_F(Gate, AStoppedReaderLeavesTheQueueOrThePlace) {
  std::atomic<bool> first = false;
  std::atomic<bool> second = false;
  std::atomic<bool> third = false;
  std::shared_ptr<read_gate> mine;
  scope tasks(threads_.io(0).executor());
  scope::task a;
  scope::task b;
  asio::post(threads_.io(0).context(), [&] {
    mine = gate();
    a = tasks.spawn_stoppable(visit_until_stopped(mine, &first));
    b = tasks.spawn_stoppable(visit_until_stopped(mine, &second));
    tasks.spawn(visit_until_stopped(gate(), &third));
  });
  settle(threads_.io(0));
  EXPECT_TRUE(first);
  asio::post(threads_.io(0).context(), [&] {
    b.stop();
    a.stop();
  });
  while (!third) settle(threads_.io(0));
  EXPECT_FALSE(second);
  asio::post(threads_.io(0).context(), [&] { tasks.stop(); });
  run_on(threads_.io(0), join_all(&tasks));
  mine.reset();
}

TEST_F(Gate, AParticipantThatDoesNotMoveIsPassedByAndSo) {
  // Holds the gate and never leaves, as a stopped process would.
  auto stuck = gate_file::open(folder_ / "gates", "disk", 1).value();
  stuck->queue();
  ASSERT_TRUE(stuck->try_enter());
  visit_log log;
  const auto a = gate();
  const auto b = gate();
  run_for(visit(a, 'a', 0, &log), patience);
  run_for(visit(b, 'b', 0, &log), patience);
  EXPECT_EQ(log.order, "ab");
  EXPECT_NE(said().find("has not moved"), std::string::npos);
  EXPECT_NE(said().find(std::to_string(getpid())), std::string::npos);
  // They met in another file, and return when the first is deserted.
  EXPECT_TRUE(std::filesystem::exists(folder_ / "gates/millrace-gate-disk-1"));
  stuck.reset();
  run_on(threads_.io(0), visit(a, 'a', 0, &log));
  auto first = gate_file::open(folder_ / "gates", "disk", 1).value();
  std::atomic<bool> inside = false;
  scope tasks(threads_.io(0).executor());
  asio::post(threads_.io(0).context(), [&] { tasks.spawn(visit_until_stopped(a, &inside)); });
  while (!inside) settle(threads_.io(0));
  EXPECT_FALSE(first->idle());
  asio::post(threads_.io(0).context(), [&] { tasks.stop(); });
  run_on(threads_.io(0), join_all(&tasks));
}

// Permission to read the file is enough to lock all of it, including future tickets.
TEST_F(Gate, WhoLocksAllOfTheFileIsPassedByToo) {
  {
    auto first = gate_file::open(folder_ / "gates", "disk", 1).value();
  }
  const held_file other(host_files().open(folder_ / "gates/millrace-gate-disk", O_RDONLY));
  struct flock all{};
  all.l_type = F_RDLCK;
  ASSERT_EQ(fcntl(other.fd(), F_OFD_SETLK, &all), 0);
  visit_log log;
  const auto a = gate();
  run_for(visit(a, 'a', 0, &log), patience);
  EXPECT_EQ(log.order, "a");
}

// A process that holds the place and makes the gate look active.
TEST_F(Gate, PatienceEndsWhateverMoves) {
  auto holder = gate_file::open(folder_ / "gates", "disk", 1).value();
  holder->queue();
  ASSERT_TRUE(holder->try_enter());
  visit_log log;
  const auto a = gate();
  const int moves = run_for(visit(a, 'a', 0, &log), patience / 2, [&] { holder->announce(); });
  EXPECT_GE(moves, 2 * 10);
  // From now on the gate is bypassed, but reads still take turns within this process.
  run_all(threads_.io(0), [&](scope& tasks) {
    for (int i = 0; i < 5; ++i) tasks.spawn(visit(a, 'x', 0, &log));
  });
  EXPECT_EQ(log.order, "axxxxx");
  EXPECT_EQ(log.most, 1);
  EXPECT_NE(said().find("gave no turn for 600 s"), std::string::npos) << said();
}

TEST_F(Gate, ADeletedFolderIsMadeAgain) {
  visit_log log;
  const auto mine = gate();
  run_on(threads_.io(0), visit(mine, 'a', 0, &log));
  std::filesystem::remove_all(folder_ / "gates");
  run_on(threads_.io(0), visit(mine, 'b', 0, &log));
  EXPECT_EQ(log.order, "ab");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "gates/millrace-gate-disk"));
}

TEST_F(Gate, WithoutAFileItHoldsForThisThreadAndSaysSoOnce) {
  folder_.write("gates", "a file where the folder should be");
  visit_log log;
  const auto mine = gate();
  run_all(threads_.io(0), [&](scope& tasks) {
    for (int i = 0; i < 5; ++i) tasks.spawn(visit(mine, 'x', 0, &log));
  });
  EXPECT_EQ(log.order.size(), 5U);
  EXPECT_EQ(log.most, 1);
  const auto first = said().find("within this process only");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(said().find("within this process only", first + 1), std::string::npos);
}

}  // namespace
}  // namespace millrace
