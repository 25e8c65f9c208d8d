#include "engine/host/start_thread.h"
#include "engine/host/seams.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <stop_token>
#include <string>

#include "engine/base/error.h"
#include "engine/threads/runtime.h"

namespace millrace {
namespace {

class Threads : public ::testing::Test {
 protected:
  ~Threads() override { refuse_threads(nullptr); }

  // How many threads were asked for while the `nth` was refused.
  template <class F>
  int ask_with_refusal(int nth, F f) {
    int asked = 0;
    refuse_threads([&] { return ++asked == nth; });
    f();
    refuse_threads(nullptr);
    return asked;
  }
};

TEST_F(Threads, ARuntimeOfWhichOneIsRefusedEndsTheOthersAndSaysWhich) {
  constexpr int io_threads = 2;
  constexpr int cpu_threads = 3;
  constexpr int pread_threads = 4;  // of each I/O thread
  constexpr int all = io_threads * (1 + pread_threads) + cpu_threads;
  for (int nth = 1; nth <= all; ++nth) {
    SCOPED_TRACE(nth);
    EXPECT_EQ(
        nth, ask_with_refusal(nth, [] {
          try {
            runtime(
                {.io_threads = io_threads, .cpu_threads = cpu_threads, .io = io_backend::pread});
            ADD_FAILURE() << "nothing was thrown";
          } catch (const failure& f) {
            EXPECT_EQ(f.kind(), errc::no_memory);
            EXPECT_NE(std::string(f.what()).find("cannot start the thread 'mr-"), std::string::npos)
                << f.what();
          }
        }));
  }
  EXPECT_EQ(
      all, ask_with_refusal(0, [] {
        runtime({.io_threads = io_threads, .cpu_threads = cpu_threads, .io = io_backend::pread});
      }));
}

constexpr std::array handled{SIGHUP,  SIGINT,  SIGTERM, SIGALRM, SIGCHLD,
                             SIGPIPE, SIGUSR1, SIGUSR2, SIGPROF};

// Handlers run on the program's own threads: those of the library take no signal.
TEST_F(Threads, BlockAllSignalsButThoseOfFaults) {
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  sigset_t mask;
  sigemptyset(&mask);
  start_thread("mr-test", [&] { pthread_sigmask(SIG_BLOCK, nullptr, &mask); }).join();
  for (const int signal : handled) EXPECT_TRUE(sigismember(&mask, signal)) << signal;
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
    EXPECT_FALSE(sigismember(&mask, fault)) << fault;
  }
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (const int signal : handled) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
}

TEST_F(Threads, OneThatIsJoinedIsAskedToStopWhenItIsDestroyedAndSaysThatItIsRefused) {
  std::string name;
  {
    const auto waits = start_joined_thread("mr-waiting-for-an-end", [&](std::stop_token stop) {
      std::array<char, 16> own{};
      pthread_getname_np(pthread_self(), own.data(), own.size());
      name = own.data();
      std::mutex mutex;
      std::condition_variable_any changed;
      std::unique_lock lock(mutex);
      changed.wait(lock, stop, [] { return false; });
    });
  }
  EXPECT_EQ(name, "mr-waiting-for-");
  EXPECT_EQ(1, ask_with_refusal(1, [] {
              try {
                start_joined_thread("mr-refused", [](std::stop_token /*no*/) {});
                ADD_FAILURE() << "nothing was thrown";
              } catch (const failure& f) {
                EXPECT_EQ(f.kind(), errc::no_memory);
              }
            }));
}

}  // namespace
}  // namespace millrace
