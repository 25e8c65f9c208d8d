#include "engine/host/start_thread.h"

#include <fmt/format.h>
#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/process_wide.h"
#include "engine/host/seams.h"

namespace millrace {
namespace {

std::function<bool()>& refusal() {
  static never_destroyed<std::function<bool()>> when;
  return *when;
}

// A thread inherits its creator's mask. A blocked fault would end the process without calling its
// handler, such as a sanitizer's.
class all_but_faults_blocked {
 public:
  all_but_faults_blocked() {
    sigset_t most;
    sigfillset(&most);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      sigdelset(&most, fault);
    }
    pthread_sigmask(SIG_BLOCK, &most, &before_);
  }
  ~all_but_faults_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  all_but_faults_blocked(const all_but_faults_blocked&) = delete;
  all_but_faults_blocked& operator=(const all_but_faults_blocked&) = delete;

 private:
  sigset_t before_{};
};

template <class Thread, class Work>
Thread started_thread(const std::string& name, Work work) {
  try {
    if (refusal() && refusal()()) throw std::system_error(EAGAIN, std::generic_category());
    // It has its name before its work begins and before its creator continues.
    const std::string shown = name.substr(0, 15);
    Thread started = [&] {
      const all_but_faults_blocked scope;
      return Thread([shown, work = std::move(work)](const auto&... stop) {
        pthread_setname_np(pthread_self(), shown.c_str());
        work(stop...);
      });
    }();
    pthread_setname_np(started.native_handle(), shown.c_str());
    return started;
  } catch (const std::system_error& e) {
    throw failure(error(errc::no_memory, fmt::format("cannot start the thread '{}'", name))
                      .cause(e.code().value())
                      .hint("raise `ulimit -u` or the cgroup's pids.max, or lower "
                            "engine_options.cpu_threads (MILLRACE_CPU_THREADS) or "
                            "engine_options.io_threads (MILLRACE_IO_THREADS)"));
  }
}

}  // namespace

std::thread start_thread(const std::string& name, std::function<void()> work) {
  return started_thread<std::thread>(name, std::move(work));
}

std::jthread start_joined_thread(const std::string& name,
                                 std::function<void(std::stop_token)> work) {
  return started_thread<std::jthread>(name, std::move(work));
}

void refuse_threads(std::function<bool()> when) {
  refusal() = std::move(when);
}

}  // namespace millrace
