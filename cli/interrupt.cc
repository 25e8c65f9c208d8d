#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "engine/base/error.h"
#include "engine/files/written_file.h"
#include "engine/host/asked_to_end.h"
#include "engine/host/start_thread.h"

namespace millrace::cli {
namespace {

std::atomic<int> signal_number = 0;
std::atomic<bool> is_over = false;  // no more work to watch
std::atomic<int> wakes = -1;        // the write end of the watch's pipe
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void on_signal(int which) {
  const int saved = errno;
  // A second signal, even a different one, takes its default action: SA_RESETHAND has removed the
  // handler.
  int none = 0;
  if (!signal_number.compare_exchange_strong(none, which)) {
    static_cast<void>(raise(which));
    errno = saved;
    return;
  }
  asked_to_end = true;
  const char byte = 0;
  if (wakes >= 0) static_cast<void>(!write(wakes, &byte, 1));
  errno = saved;
}

// Ends the process if stdout stays blocked for a second; returns when the process ends on its own.
void end_if_stdout_is_stuck(int woken) {
  constexpr int slice_ms = 100;
  constexpr int most_slices = 10;
  for (int stuck = 0; stuck < most_slices;) {
    pollfd ends{.fd = woken, .events = POLLIN, .revents = 0};
    char byte = 0;  // from another signal, or from the destructor
    if (poll(&ends, 1, slice_ms) > 0 && read(woken, &byte, 1) == 1 && is_over) return;
    pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    stuck = poll(&out, 1, 0) == 0 ? stuck + 1 : 0;
  }
  remove_own_partial_files();
  std::_Exit(exit_code_of_interrupt());
}

// Turns the signal into a stop request, by a thread that waits for a byte in a pipe: a signal
// handler may write to a pipe, but must not call request_stop(). The destructor wakes the thread
// the same way, and joins it. The pipe is never closed, since a signal may come until the end.
class stop_watch {
 public:
  stop_watch() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw failure(error(kind_of(errno), "cannot make a pipe").cause(errno));
    }
    wakes = ends[1];
    if (asked_to_end) stop_.request_stop();
    thread_ =
        start_joined_thread("mr-interrupt", [this, end = ends[0]](const std::stop_token& /*no*/) {
          char byte = 0;
          while (!asked_to_end && read(end, &byte, 1) < 0 && errno == EINTR) {
          }
          stop_.request_stop();
          if (asked_to_end) end_if_stdout_is_stuck(end);
        });
  }
  ~stop_watch() {
    is_over = true;
    const char byte = 0;
    static_cast<void>(!write(wakes, &byte, 1));
  }
  stop_watch(const stop_watch&) = delete;
  stop_watch& operator=(const stop_watch&) = delete;

  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  std::jthread thread_;  // joined before stop_ goes
};

const stop_watch& watch() {
  static const stop_watch one;
  return one;
}

}  // namespace

const std::atomic<bool>& interrupted() {
  struct sigaction how{};
  how.sa_handler = on_signal;
  how.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  struct sigaction before{};
  const bool hangs_up = sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN;
  for (const int which : {SIGINT, SIGTERM}) sigaction(which, &how, nullptr);
  if (hangs_up) sigaction(SIGHUP, &how, nullptr);
  return asked_to_end;
}

std::stop_token stop_requested() {
  static_cast<void>(interrupted());
  return watch().token();
}

int exit_code_of_interrupt() {
  return asked_to_end ? 128 + signal_number : 0;
}

}  // namespace millrace::cli
