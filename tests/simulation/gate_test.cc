// The read gate between processes in simulated time, from seeds: which readers are admitted and how
// long they wait, while processes are killed or hang inside. Changes are not announced here
// (inotify): all processes poll.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/coroutines/timer.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/runtime.h"
#include "io/disks/read_gate.h"
#include "tests/support/simulator.h"

namespace millrace::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto patience = 5s;
constexpr auto longest_turn = 20ms;
constexpr auto between_looks = 10ms;  // plus some time

struct tally {
  std::vector<int> inside;  // readers inside, by process
  int most_inside = 0;
  steady_clock::duration longest_wait{0};
  int turns = 0;
};

awaitable<void> read_in_turns(std::shared_ptr<read_gate> gate, tally* all, std::size_t process,
                              int turns, random_stream* luck) {
  for (int i = 0; i < turns; ++i) {
    const auto begin = steady_clock::now();
    auto permit = co_await gate->enter([luck] { return std::size_t{luck->below(100)}; });
    all->longest_wait = std::max(all->longest_wait, steady_clock::now() - begin);
    ++all->turns;
    ++all->inside[process];
    int now = 0;
    for (const int n : all->inside) now += n;
    all->most_inside = std::max(all->most_inside, now);
    const std::chrono::microseconds turn(luck->below(20'000));
    co_await sleep_for(turn);
    --all->inside[process];
    permit.release();
    const std::chrono::microseconds pause(luck->below(9'000));
    co_await sleep_for(pause);
  }
}

awaitable<void> stay(std::shared_ptr<read_gate> gate, steady_clock::duration time) {
  const auto permit = co_await gate->enter([] { return std::size_t{0}; });
  co_await sleep_for(time);
}

class GateOfProcesses : public ::testing::Test {
 protected:
  static constexpr int readers = 3;

  struct process {
    std::unique_ptr<runtime> threads;
    std::unique_ptr<scope> tasks;
    std::shared_ptr<read_gate> gate;
  };
  // Processes with some readers each, on their own host.
  struct host {
    host(std::uint64_t seed, std::size_t count, int permits)
        : sim(seed), luck(seed, purpose::stage) {
      sim.replay = fmt::format("seed {}", seed);
      all.inside.resize(count);
      for (std::size_t p = 0; p < count; ++p) {
        sim.run_as(static_cast<int>(p));
        process& made = processes.emplace_back();
        made.threads =
            std::make_unique<runtime>(runtime_options{.cpu_threads = 1, .io = io_backend::pread});
        const auto executor = made.threads->io(0).executor();
        made.tasks = std::make_unique<scope>(executor);
        made.gate = std::make_shared<read_gate>(
            executor,
            gate_options{
                .folder = "/gate", .identity = "disk", .permits = permits, .patience = patience});
      }
    }
    ~host() {
      for (std::size_t p = 0; p < processes.size(); ++p) end(p);
    }
    host(const host&) = delete;
    host& operator=(const host&) = delete;

    void reads(std::size_t p, int turns) {
      sim.run_as(static_cast<int>(p));
      for (int r = 0; r < readers; ++r) {
        processes[p].tasks->spawn(read_in_turns(processes[p].gate, &all, p, turns, &luck));
      }
    }
    void stays(std::size_t p, steady_clock::duration time) {
      sim.run_as(static_cast<int>(p));
      processes[p].tasks->spawn(stay(processes[p].gate, time));
    }
    void pass(steady_clock::duration time) {
      const auto until = sim.now() + time;
      sim.wake_at(until);
      sim.run_until([&] { return sim.now() >= until; });
    }
    void kill(std::size_t p) {
      sim.files.kill(static_cast<int>(p));
      end(p);
      all.inside[p] = 0;
    }
    // Stops everything the process does.
    void end(std::size_t p) {
      if (!processes[p].tasks) return;
      sim.run_as(static_cast<int>(p));
      processes[p].tasks->stop();
      join(p);
      processes[p].gate.reset();
      processes[p].tasks.reset();
      processes[p].threads.reset();
    }
    void join(std::size_t p) {
      if (!processes[p].tasks) return;
      auto over = spawn_on(processes[p].threads->io(0).executor(), processes[p].tasks->join());
      get(over);
    }
    // Twice the bound for a wait after all other readers, admitted one at a time.
    steady_clock::duration in_turn() const {
      return 2 * readers * processes.size() * (longest_turn + between_looks);
    }

    simulator sim;
    random_stream luck;
    tally all;
    std::vector<process> processes;
  };

  GateOfProcesses() { set_log_level(log_level::quiet); }
  ~GateOfProcesses() override { set_log_level(log_level::notice); }
};

TEST_F(GateOfProcesses, LetsInAsManyAsItHasPlacesAndAllInTurnWhoeverIsKilled) {
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const int permits = 1 + static_cast<int>(seed % 3);
    const std::size_t count = 1 + seed % 4;
    host h(seed, count, permits);
    for (std::size_t p = 0; p < count; ++p) h.reads(p, 20);
    const bool kills = count > 1 && seed % 5 != 0;
    if (kills) {
      h.pass(std::chrono::microseconds(h.luck.below(900'000)));
      h.kill(h.luck.below(static_cast<std::uint32_t>(count)));
    }
    for (std::size_t p = 0; p < count; ++p) h.join(p);
    EXPECT_LE(h.all.most_inside, permits);
    EXPECT_LE(h.all.longest_wait, h.in_turn());
    EXPECT_GE(h.all.turns, static_cast<int>(count - (kills ? 1 : 0)) * readers * 20);
    for (std::size_t p = 0; p < count; ++p) h.end(p);
    EXPECT_EQ(h.sim.files.open_descriptors(), 0U);
  }
}

TEST_F(GateOfProcesses, IsLeftWhereOneHangsInside) {
  for (std::uint64_t seed = 1; seed <= 5 && !HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    host h(seed, 4, 1);
    h.stays(0, 1h);
    for (std::size_t p = 1; p < 4; ++p) h.reads(p, 10);
    for (std::size_t p = 1; p < 4; ++p) h.join(p);
    EXPECT_EQ(h.all.turns, 3 * readers * 10);
    EXPECT_LE(h.all.longest_wait, 2 * patience + h.in_turn());
  }
}

TEST_F(GateOfProcesses, PatienceBeginsWhenSomebodyWaits) {
  host h(6, 2, 1);
  h.reads(0, 1);
  h.pass(2 * patience);
  EXPECT_EQ(h.all.turns, readers);
  h.stays(1, 1h);
  h.pass(1ms);
  h.all.longest_wait = {};
  h.reads(0, 1);
  h.join(0);
  EXPECT_EQ(h.all.turns, 2 * readers);
  EXPECT_GE(h.all.longest_wait, patience);
  EXPECT_LE(h.all.longest_wait, 2 * patience + h.in_turn());
}

TEST_F(GateOfProcesses, LetsGoOfAWaiterWithinASecondOfAStop) {
  for (const auto when : {0us, 3'000us, 4'900'000us}) {
    host h(5, 2, 1);
    h.stays(0, 1h);
    h.pass(1ms);
    h.reads(1, 1);
    h.pass(when);
    const auto begin = h.sim.now();
    h.end(1);
    EXPECT_LE(h.sim.now() - begin, 1s) << when.count();
    EXPECT_EQ(h.all.turns, 0) << when.count();
  }
}

}  // namespace
}  // namespace millrace::testing
