// Every call of a seam and every allocation fails: once, and from some call on permanently, at the
// first, the second, ... of them. Each case runs in its own process, forked from this one, so that
// a crash, a hang or a leak is detected (tests/README.md).
#include <execinfo.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>
#include <string_view>

#include "engine/host/log.h"
#include "tests/simulation/allocations.h"
#include "tests/simulation/journey.h"
#include "tests/support/scripted_processes.h"
#include "tests/support/seeds.h"

namespace millrace::testing {
namespace {

enum class seam : std::uint8_t { memory, files, network, processes, clock };

struct injection {
  seam at;
  std::uint64_t nth;
  bool for_ever;
  int why = EIO;  // of files and processes
};

std::string text_of(const injection& i) {
  constexpr const char* names[] = {"allocation", "call of the file system", "call of the network",
                                   "call of a process", "jump of time"};
  return fmt::format(
      "{} {}{}{}", names[static_cast<int>(i.at)], i.nth, i.for_ever ? " and all after it" : "",
      i.at == seam::files || i.at == seam::processes ? fmt::format(" with errno {}", i.why) : "");
}

// Runs `c` with the injection; sets the number of points of that kind that it passed.
ending run_with(const injection& in, const course& c, std::uint64_t& points) {
  simulator sim(1);
  sim.replay = text_of(c) + ", " + text_of(in);
  points = 0;
  bool is_over = false;
  const auto fails = [&] {
    ++points;
    return in.nth != 0 && !is_over && (in.for_ever ? points >= in.nth : points == in.nth);
  };
  course resumed = c;
  resumed.mend = [&] {
    is_over = true;
    allocations::relent();
  };
  if (in.at == seam::files) {
    sim.files.fault = [&](const char* call, const std::string& path) {
      // Only those of the job itself: closing always closes.
      const bool counts = std::ranges::any_of(
          std::array<std::string_view, 3>{"/data/", "/tmp/cache", "/proc/self/fd/"},
          [&](std::string_view front) { return path.starts_with(front); });
      if (std::string_view(call) == "close") return 0;
      return counts && fails() ? -in.why : 0;
    };
  }
  if (in.at == seam::clock) {
    sim.longest = std::chrono::hours(1'000'000);
    sim.jump = [fails] {
      return fails() ? steady_clock::duration(std::chrono::hours(1)) : steady_clock::duration(0);
    };
  }
  simulated_network::fault = in.at == seam::network ? std::function<bool()>(fails) : nullptr;
  scripted_processes::fault = nullptr;
  if (in.at == seam::processes) {
    scripted_processes::fault = [&] { return fails() ? in.why : 0; };
  }
  if (in.at == seam::memory) allocations::arm(in.nth, in.for_ever);
  ending out = run(sim, resumed);
  if (in.at == seam::memory) points = allocations::disarm();
  simulated_network::fault = nullptr;
  scripted_processes::fault = nullptr;
  return out;
}

// Whether a failure there may cause an error of this kind.
bool is_right(errc kind, seam at, bool troubled) {
  switch (at) {
    case seam::memory:
      return kind == errc::no_memory;
    case seam::clock:
      // If attempts take no time, the last one's error is reported.
      return kind == errc::timed_out ||
             (troubled && (kind == errc::http_status || is_right(kind, seam::network, true)));
    case seam::processes:
    case seam::files:
      return kind == errc::io_failed || kind == errc::not_allowed || kind == errc::no_descriptors;
    case seam::network:
      return kind == errc::connect_failed || kind == errc::cut || kind == errc::timed_out;
  }
  return false;
}

// Empty if the program did what it promises.
std::string verdict(const injection& in, const course& c) {
  const std::int64_t before = allocations::live();
  std::string wrong;
  {
    std::uint64_t points = 0;
    const ending out = run_with(in, c, points);
    const auto& all = expected(c.decodes);
    const bool must_pass = c.from == course::storage::cached && in.at == seam::files;
    if (out.failed && must_pass) {
      wrong = "the cache is in the way: " + out.why;
    } else if (out.failed && !is_right(*out.failed, in.at, c.troubled)) {
      wrong = fmt::format("ends with {}: {}", kind_name(*out.failed), out.why);
    } else if (!out.failed && out.given != all) {
      wrong = fmt::format("gives {} samples of {}, and no error", out.given.size(), all.size());
    } else if (!std::ranges::includes(all, out.given)) {
      wrong = "gives a sample twice, or a wrong one";
    } else if (!out.failed_again.empty()) {
      wrong = "saved and resumed, it fails again: " + out.failed_again;
    } else if (out.is_resumed && out.given != all) {
      wrong = fmt::format("saved and resumed, it gives {} samples of {}: {}", out.given.size(),
                          all.size(), out.why);
    } else if (!out.failed && !out.ledger_wrong.empty()) {
      wrong = out.ledger_wrong;
    } else if (out.commands > 0) {
      wrong = fmt::format("leaves {} commands running", out.commands);
    } else if (out.descriptors > 0) {
      wrong = fmt::format("leaves {} descriptors open", out.descriptors);
    }
  }
  const std::int64_t left = allocations::live() - before - (wrong.size() > 15 ? 1 : 0);
  if (wrong.empty() && left > 0) wrong = fmt::format("leaves {} blocks of memory", left);
  return wrong;
}

// Returns what `f` says, in a child; or how the child ended, or that it did not end.
std::string in_a_child(const std::function<std::string()>& f) {
  constexpr unsigned seconds = 30;
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    std::set_terminate([] {
      std::array<void*, 60> at;
      backtrace_symbols_fd(at.data(), backtrace(at.data(), at.size()), 2);
      _exit(9);
    });
    const std::string said = f();
    const bool told = write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  std::array<char, 4096> piece;
  for (ssize_t n = 0; (n = read(ends[0], piece.data(), piece.size())) > 0;) {
    said.append(piece.data(), static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGALRM ? "hangs"
                                       : fmt::format("ends by signal {}", WTERMSIG(status));
  }
  if (WEXITSTATUS(status) == 3) return "hangs in simulated time";
  if (WEXITSTATUS(status) == 9) return "ends by std::terminate";
  if (WEXITSTATUS(status) != 0) return fmt::format("ends with {}", WEXITSTATUS(status));
  return said;
}

struct scenario {
  const char* name;
  course what;
};

class NthFailure : public ::testing::TestWithParam<scenario> {
 protected:
  NthFailure() {
    set_log_level(log_level::quiet);
    expected(GetParam().what.decodes);
  }
  ~NthFailure() override { set_log_level(log_level::notice); }

  // Every `stride`-th point of that kind, or all with TEST_SIM_POINTS=all.
  static void fail_all(seam at, std::uint64_t at_most, std::vector<int> reasons) {
    const course& c = GetParam().what;
    std::uint64_t points = 0;
    for (int warm = 0; warm < 2; ++warm) run_with({at, 0, false}, c, points);
    const std::uint64_t budget = variable("TEST_SIM_POINTS", at_most);
    const std::uint64_t stride =
        std::max<std::uint64_t>(1, points / std::max<std::uint64_t>(1, budget));
    std::uint64_t tried = 0;
    std::vector<std::string> wrong;
    const std::uint64_t only = variable("TEST_SIM_POINT", 0);
    for (std::uint64_t n = only > 0 ? only : 1; n <= points; n += only > 0 ? points : stride) {
      for (const bool for_ever : {false, true}) {
        const injection in{at, n, for_ever, reasons[n % reasons.size()]};
        const std::string said = in_a_child([&] { return verdict(in, c); });
        ++tried;
        if (!said.empty()) wrong.push_back(text_of(in) + ": " + said);
      }
    }
    ASSERT_GT(points, 0U);
    std::printf("%s: %llu points, %llu failures tried\n", GetParam().name,
                static_cast<unsigned long long>(points), static_cast<unsigned long long>(tried));
    for (std::size_t i = 0; i < std::min<std::size_t>(wrong.size(), 10); ++i)
      ADD_FAILURE() << wrong[i];
    EXPECT_EQ(wrong.size(), 0U);
  }
};

TEST_P(NthFailure, OfWhatItReads) {
  switch (GetParam().what.from) {
    case course::storage::http:
      return fail_all(seam::network, 30, {EIO});
    case course::storage::pipe:
      return fail_all(seam::processes, 30, {EIO, EMFILE, EAGAIN});
    case course::storage::file:
    case course::storage::cached:
      return fail_all(seam::files, 30, {EIO, EMFILE, EACCES});
  }
}

TEST_P(NthFailure, OfMemory) {
  fail_all(seam::memory, 60, {0});
}

// Each deadline passes at once, as if the host had slept.
TEST_P(NthFailure, OfTime) {
  fail_all(seam::clock, 30, {0});
}

using enum course::storage;
INSTANTIATE_TEST_SUITE_P(
    Courses, NthFailure,
    ::testing::Values(
        scenario{"Read", {.from = file}}, scenario{"Decode", {.from = file, .decodes = true}},
        scenario{"Held", {.from = file, .is_held = true}},
        scenario{"HeldOfTwoRanks", {.from = file, .ranks = 2, .is_held = true}},
        scenario{"DecodeHeld", {.from = file, .decodes = true, .is_held = true}},
        scenario{"TwoRanks", {.from = file, .ranks = 2}},
        scenario{"Resume", {.from = file, .ranks_after = 2, .stop_after = 9}},
        scenario{"Checkpoint",
                 {.from = file, .ranks = 2, .stop_after = 9, .is_checkpointed = true}},
        scenario{"Validation", {.from = file, .ranks = 2, .validates = true}},
        scenario{"HttpValidation", {.from = http, .validates = true}},
        scenario{"Cache", {.from = cached}},
        scenario{"CacheOfTwoRanks", {.from = cached, .ranks = 2}}, scenario{"Http", {.from = http}},
        scenario{"HttpCut", {.from = http, .troubled = true}}, scenario{"Pipe", {.from = pipe}},
        scenario{"PipeTwoRanksResume", {.from = pipe, .ranks = 2, .stop_after = 9}},
        scenario{"PipeDecodeTroubled", {.from = pipe, .decodes = true, .troubled = true}},
        scenario{"HttpDecodeResume", {.from = http, .decodes = true, .ranks = 2, .stop_after = 3}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace millrace::testing
