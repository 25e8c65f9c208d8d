#include "train/loop/signals.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "engine/host/standard_error.h"
#include "engine/host/start_thread.h"

namespace millrace {
namespace {

const char* name_of(int signal) {
  switch (signal) {
    case SIGHUP:
      return "SIGHUP";
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "SIGUSR2";
  }
}

// Must not block, so that the next signal is handled even if nobody reads this.
template <class... T>
void tell(fmt::format_string<T...> format, T&&... values) {
  write_to_stderr_now(
      fmt::format("\nmillrace: {}\n", fmt::format(format, std::forward<T>(values)...)));
}

}  // namespace

signal_watch::signal_watch() {
  // If stderr's reader is gone, messages are dropped; that does not end a run.
  std::signal(SIGPIPE, SIG_IGN);
  sigemptyset(&watched_);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&watched_, signal);
  // Under nohup it stays ignored, so it must not be blocked and then taken.
  struct sigaction hangup{};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&watched_, SIGHUP);
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  pthread_sigmask(SIG_BLOCK, &watched_, nullptr);
  thread_ = start_thread("mr-signals", [this] { watch(); });
}

signal_watch::~signal_watch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
  thread_.join();
  close(wake_);
}

train_control signal_watch::control() {
  return {.stop = stop_.get_token(),
          .ending_signal = [this] { return ending_.load(); },
          .take_save_request = [this] { return save_.exchange(false); },
          .training_begins = [this] { training_ = true; }};
}

void signal_watch::watch() {
  const int signals = signalfd(-1, &watched_, SFD_CLOEXEC);
  if (signals < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
  std::array<pollfd, 2> both{pollfd{.fd = signals, .events = POLLIN, .revents = 0},
                             pollfd{.fd = wake_, .events = POLLIN, .revents = 0}};
  for (;;) {
    if (poll(both.data(), both.size(), -1) < 0) continue;  // EINTR
    if (both[1].revents != 0) break;
    signalfd_siginfo got{};
    if (read(signals, &got, sizeof got) == static_cast<ssize_t>(sizeof got)) {
      take(static_cast<int>(got.ssi_signo));
    }
  }
  close(signals);
}

void signal_watch::take(int signal) {
  if (signal == SIGUSR1) {
    save_ = true;
    return;
  }
  const bool first = ending_ == 0;
  const auto now = steady_clock::now();
  const bool insists = signal == SIGINT || signal == SIGTERM;
  // `timeout` and others send a signal to a process and to its group: that is one request.
  constexpr std::chrono::milliseconds one_request{500};
  const bool is_repeated = signal == asked_by_ && asked_at_ && now - *asked_at_ < one_request;
  const bool asks_again = insists && asked_at_ && !is_repeated;
  if (insists && !asked_at_) {
    asked_at_ = now;
    asked_by_ = signal;
  }
  if (is_repeated && training_) return;
  if (!training_ || asks_again) {
    tell("{}: ended at once", name_of(signal));
    std::_Exit(exit_code_of_signal(signal));
  }
  if (!first) {
    tell("{}: already stopping after this step", name_of(signal));
    return;
  }
  ending_ = signal;
  stop_.request_stop();  // before the message: no step begins after that
  tell("{}: stopping after this step{}", name_of(signal), insists ? " (again: at once)" : "");
}

}  // namespace millrace
