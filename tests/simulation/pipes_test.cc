// Commands of pipe: URLs that fail, stop forever at each point, or end in any way, in simulated
// time: every wait ends by its deadline, and within a second of a stop.
#include <gtest/gtest.h>

#include <cerrno>

#include "engine/base/units.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/coroutines/timer.h"
#include "engine/threads/io_thread.h"
#include "io/source.h"
#include "io/standard_sources.h"
#include "tests/support/scripted_processes.h"
#include "tests/support/simulator.h"

namespace millrace::testing {
namespace {

using namespace std::chrono_literals;

constexpr script::duration never = script::never;
constexpr auto read_timeout = 60s;

struct outcome {
  std::string content;
  std::optional<error> failed;
  steady_clock::duration took{0};
  int running = 0;  // commands left running
};

awaitable<void> read_pipe(source_context context, source_registry* sources, outcome* to) {
  auto source = co_await sources->open(std::move(context), "pipe:fetch it");
  for (;;) {
    const auto piece = source ? co_await (*source)->read() : result<bytes>(source.error());
    if (!piece) to->failed = piece.error();
    if (!piece || piece->empty()) co_return;
    to->content += piece->text();
  }
}

awaitable<void> stop_later(scope* tasks, steady_clock::duration time) {
  co_await sleep_for(time);
  tasks->stop();
}

// Reads a command that does this; the run is stopped after a time, if one is given.
outcome read(const script& what, std::optional<steady_clock::duration> stopped_after = {}) {
  simulator sim(7);
  scripted_processes commands([&](const std::string&) { return what; });
  outcome out;
  {
    runtime threads({.cpu_threads = 1, .io = io_backend::pread});
    io_thread& io = threads.io(0);
    const source_options options{
        .chunk_bytes = 64_KiB, .read_timeout = read_timeout, .allow_pipe = true};
    source_registry sources = standard_sources(io, options);
    source_counters counters;
    scope tasks(io.executor());
    const auto begin = steady_clock::now();
    tasks.spawn(read_pipe({threads, io, tasks,
                           std::make_shared<memory_share>("test", 1_MiB, default_host_allocator()),
                           options, counters},
                          &sources, &out));
    if (stopped_after) tasks.spawn(stop_later(&tasks, *stopped_after));
    auto ended = spawn_on(io.executor(), tasks.join());
    get(ended);
    out.took = steady_clock::now() - begin;
  }
  out.running = commands.running;
  return out;
}

// What a command can do instead of continuing, at every point of its life.
struct way_to_stay {
  const char* name;
  script what;
};
const way_to_stay ways[] = {
    {"BeforeItsOutput", {.closes_after = never, .ends_after = never}},
    {"InTheMiddle", {.writes = {{1ms, "12345"}}, .closes_after = never, .ends_after = never}},
    {"AfterClosingItsOutput", {.writes = {{1ms, "12345"}}, .ends_after = never}},
    {"OthersHoldItsOutput", {.writes = {{1ms, "12345"}}, .closes_after = never}},
    {"SayingWhyForEver",
     {.writes = {{1ms, "a moment\n", child_process::output::err}, {30s, "12345"}, {90s, "6"}},
      .closes_after = never,
      .ends_after = never}},
    {"HeldByADevice",
     {.writes = {{1ms, "12345"}}, .closes_after = never, .ends_after = never, .is_deaf = true}},
    {"HeldByADeviceAfterItsOutput",
     {.writes = {{1ms, "12345"}}, .ends_after = never, .is_deaf = true}},
};

class Commands : public ::testing::TestWithParam<way_to_stay> {};

TEST_P(Commands, EndByTheDeadline) {
  const outcome out = read(GetParam().what);
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::timed_out);
  EXPECT_NE(out.failed->message().find("MILLRACE_READ_TIMEOUT"), std::string::npos)
      << out.failed->message();
  // Each wait may take that long again, and a kill half a second.
  EXPECT_LE(out.took, 2 * read_timeout + 1s);
  EXPECT_EQ(out.running, 0);
}

TEST_P(Commands, EndWithinASecondOfAStop) {
  for (const auto when : {0us, 500us, 1'000us, 2'000us, 40'000'000us}) {
    const outcome out = read(GetParam().what, when);
    EXPECT_LE(out.took, when + 1s) << when.count();
    EXPECT_EQ(out.running, 0) << when.count();
  }
}

INSTANTIATE_TEST_SUITE_P(Stay, Commands, ::testing::ValuesIn(ways),
                         [](const auto& p) { return p.param.name; });

TEST(CommandsThatFail, CannotBeStarted) {
  const auto failed = [](int why) {
    const outcome out = read({.start_fails = why});
    EXPECT_EQ(out.took, 0s);
    return *out.failed;
  };
  EXPECT_EQ(failed(EAGAIN).kind(), errc::io_failed);
  EXPECT_NE(failed(EAGAIN).message().find("ulimit -u"), std::string::npos);
  EXPECT_EQ(failed(ENOENT).kind(), errc::io_failed);
  EXPECT_NE(failed(ENOENT).message().find("/bin/sh"), std::string::npos);
  EXPECT_EQ(failed(EMFILE).kind(), errc::no_descriptors);
  EXPECT_EQ(failed(ENOMEM).kind(), errc::no_memory);
  for (const int why : {EAGAIN, ENOENT, EMFILE, ENOMEM}) {
    EXPECT_EQ(failed(why).where(), "pipe:fetch ...") << why;
  }
}

TEST(CommandsThatFail, EndWithACodeOrASignal) {
  constexpr auto err = child_process::output::err;
  const auto said = [](const script& what) {
    const outcome out = read(what);
    EXPECT_EQ(out.content, "12345");
    EXPECT_EQ(out.running, 0);
    EXPECT_EQ(out.failed->kind(), errc::io_failed);
    EXPECT_LT(out.took, 20s);
    return out.failed->message();
  };
  const std::string by_code =
      said({.writes = {{0s, "12"}, {5s, "345"}, {5s, "no such bucket\n", err}}, .status = 3 << 8});
  EXPECT_NE(by_code.find("status 3, saying 'no such bucket'"), std::string::npos) << by_code;
  const std::string by_signal = said({.writes = {{1s, "12345"}}, .ends_after = 10s, .status = 9});
  EXPECT_NE(by_signal.find("signal 9"), std::string::npos) << by_signal;
}

TEST(CommandsThatFail, AreReadToTheEndWhereTheyAnswerInPieces) {
  script what;
  std::string whole;
  for (int i = 0; i < 300; ++i) {
    const std::string piece = std::to_string(i) + (i % 7 == 0 ? std::string(70'000, 'x') : ",");
    what.writes.push_back({i % 9 == 0 ? 59s : 10us, piece});
    whole += piece;
  }
  const outcome out = read(what);
  EXPECT_FALSE(out.failed) << out.failed->message();
  EXPECT_EQ(out.content, whole);
  EXPECT_EQ(out.running, 0);
}

}  // namespace
}  // namespace millrace::testing
