#include "engine/files/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <utility>

#include "engine/coroutines/async.h"
#include "engine/host/seams.h"

extern char** environ;

namespace millrace {
namespace {

using descriptor = asio::posix::stream_descriptor;

// A close-on-exec pipe: bytes written to the second end are read from the first. The destructor
// closes ends that were not moved out.
class pipe_ends {
 public:
  pipe_ends() = default;
  ~pipe_ends() {
    for (const int fd : {reading_, writing_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  pipe_ends(const pipe_ends&) = delete;
  pipe_ends& operator=(const pipe_ends&) = delete;

  int open() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return -errno;
    reading_ = fds[0];
    writing_ = fds[1];
    return 0;
  }
  int reading() const { return reading_; }
  int writing() const { return writing_; }
  int give_reading() { return std::exchange(reading_, -1); }
  int give_writing() { return std::exchange(writing_, -1); }

 private:
  int reading_ = -1;
  int writing_ = -1;
};

// The attributes of a shell: its own process group, no blocked signals, default handlers.
class spawning {
 public:
  spawning() {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
    // Regardless of what this thread blocks and the program ignores.
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~spawning() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  spawning(const spawning&) = delete;
  spawning& operator=(const spawning&) = delete;

  void give(int fd, int as) { posix_spawn_file_actions_adddup2(&files_, fd, as); }
  void give_nothing(int as, int flags) {
    posix_spawn_file_actions_addopen(&files_, as, "/dev/null", flags, 0);
  }
  // 0 and the process, or -errno.
  int run(std::string text, pid_t& pid) {
    posix_spawn_file_actions_addclosefrom_np(&files_, STDERR_FILENO + 1);
    std::string shell = "sh";
    std::string flag = "-c";
    char* const arguments[] = {shell.data(), flag.data(), text.data(), nullptr};
    const int why = posix_spawn(&pid, "/bin/sh", &files_, &attributes_, arguments, environ);
    if (why != 0) pid = 0;
    return -why;
  }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

class shell_command final : public child_process {
 public:
  explicit shell_command(const asio::any_io_executor& executor)
      : out_(executor), err_(executor), ended_(executor) {}
  ~shell_command() override { kill(); }
  shell_command(const shell_command&) = delete;
  shell_command& operator=(const shell_command&) = delete;

  int start(const std::string& command) {
    pipe_ends out;
    pipe_ends err;
    for (pipe_ends* ends : {&out, &err}) {
      if (const int why = ends->open(); why != 0) return why;
    }
    spawning how;
    how.give_nothing(STDIN_FILENO, O_RDONLY);
    how.give(out.writing(), STDOUT_FILENO);
    how.give(err.writing(), STDERR_FILENO);
    if (const int why = how.run(command, pid_); why != 0) return why;
    watch();
    const long fd = syscall(SYS_pidfd_open, pid_, 0);
    if (fd < 0) {
      const int why = -errno;
      kill();
      waitpid(std::exchange(pid_, 0), nullptr, 0);
      return why;
    }
    ended_.assign(static_cast<int>(fd));
    out_.assign(out.give_reading());
    err_.assign(err.give_reading());
    return 0;
  }

  awaitable<ssize_t> read_some(output from, std::span<std::byte> into) override {
    descriptor& end = from == output::out ? out_ : err_;
    const auto [failed, got] =
        co_await end.async_read_some(asio::buffer(into.data(), into.size()), no_throw);
    if (failed == asio::error::eof) co_return 0;
    co_return failed ? -failed.value() : static_cast<ssize_t>(got);
  }

  awaitable<int> wait_for_end() override {
    const auto [failed] = co_await ended_.async_wait(descriptor::wait_read, no_throw);
    co_return -failed.value();
  }

  void kill() override {
    if (pid_ > 0 && is_ours()) ::kill(-pid_, SIGKILL);
    if (watcher_ > 0) {
      ::kill(watcher_, SIGKILL);
      waitpid(std::exchange(watcher_, 0), nullptr, 0);
    }
    if (lifeline_ >= 0) close(std::exchange(lifeline_, -1));
  }

  // Its PID is not reused until it is waited for.
  std::optional<int> status() override {
    int status = 0;
    const pid_t reaped = waitpid(std::exchange(pid_, 0), &status, WNOHANG);
    if (reaped < 0) return unknown_status;
    return reaped > 0 ? std::optional(status) : std::nullopt;
  }

 private:
  // Whether it can still be waited for. If SIGCHLD is ignored, the system has already reaped it,
  // and its PID may belong to another process.
  bool is_ours() const {
    siginfo_t about{};
    return waitid(P_PID, static_cast<id_t>(pid_), &about, WEXITED | WNOHANG | WNOWAIT) == 0;
  }

  void watch() {
    pipe_ends ends;
    if (ends.open() != 0) return;
    spawning how;
    how.give(ends.reading(), STDIN_FILENO);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) how.give_nothing(fd, O_WRONLY);
    how.run(fmt::format("read -r _; kill -9 -{}", pid_), watcher_);
    lifeline_ = ends.give_writing();
  }

  pid_t pid_ = 0;
  // Kills the group when this process dies, however it dies: it waits for the end of a pipe whose
  // other end only this process holds.
  pid_t watcher_ = 0;
  int lifeline_ = -1;
  descriptor out_;
  descriptor err_;
  descriptor ended_;  // a pidfd
};

class system_processes final : public process_starter {
 public:
  int start(const std::string& command, const asio::any_io_executor& executor,
            std::unique_ptr<child_process>& to) override {
    auto made = std::make_unique<shell_command>(executor);
    const int why = made->start(command);
    if (why == 0) to = std::move(made);
    return why;
  }
};

process_starter* in_the_systems_place = nullptr;

}  // namespace

process_starter& host_processes() {
  static system_processes system;
  return in_the_systems_place != nullptr ? *in_the_systems_place : system;
}

void simulate_processes(process_starter* instead) {
  in_the_systems_place = instead;
}

}  // namespace millrace
