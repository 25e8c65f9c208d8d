#include "train/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/host/job_place.h"
#include "engine/host/standard_error.h"
#include "train/loop/control.h"

namespace millrace {
namespace {

// By this job_place knows such a rank.
constexpr const char* launcher_variable = "LOCAL_STARTER";
// The process that has started this one as a rank, and the descriptor of a pipe to it: "1234:5".
// That one is free in the starter, so none that a user has opened for the ranks is in its way.
constexpr const char* starter_variable = "LOCAL_STARTER_PID";
// A longer line is passed on in pieces: a pipe that takes text takes as much.
constexpr std::size_t longest_line = 3 << 10;

[[noreturn]] void cannot_start(int why) {
  throw failure(
      error(kind_of(why), "cannot start a rank")
          .cause(why)
          .hint("raise the host's limits on processes and descriptors, or lower --nproc"));
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& variables, int progress) {
  auto all = variables_of_process();
  for (const auto& [name, value] : variables) all.insert_or_assign(name, value);
  all.insert_or_assign(launcher_variable, "millrace-train");
  all.insert_or_assign(starter_variable, fmt::format("{}:{}", getpid(), progress));
  std::vector<std::string> out;
  for (const auto& [name, value] : all) out.push_back(fmt::format("{}={}", name, value));
  return out;
}

}  // namespace

rank_process::rank_process(int rank, const std::vector<std::string>& words,
                           const std::vector<std::pair<std::string, std::string>>& variables)
    : rank_(rank) {
  std::array<int, 2> ends{-1, -1};
  std::array<int, 2> progress{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) cannot_start(errno);
  lines_ = ends[0];
  if (pipe2(progress.data(), O_CLOEXEC) != 0) {
    const int why = errno;
    for (const int end : ends) close(end);
    cannot_start(why);
  }
  progress_ = progress[0];
  for (const int reading : {lines_, progress_}) fcntl(reading, F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&files, progress[1], progress[1]);  // kept open
  // A request to save that comes while it loads waits for it.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  posix_spawnattr_setsigmask(&attributes, &blocked);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  auto given = words;
  auto environment = environment_with(variables, progress[1]);
  const int why = posix_spawn(&pid_, "/proc/self/exe", &files, &attributes,
                              pointers_to(given).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  close(progress[1]);
  if (why == 0) return;
  close(lines_);
  close(progress_);
  cannot_start(why);
}

rank_process::~rank_process() {
  if (!status_) {
    signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (lines_ >= 0) close(lines_);
  close(progress_);
}

bool rank_process::has_said(char what) {
  std::array<char, 16> bytes;
  for (ssize_t got = 0; (got = read(progress_, bytes.data(), bytes.size())) > 0;) {
    said_.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return said_.find(what) != said_.npos;
}

bool rank_process::has_line() const {
  return line_.find('\n') != line_.npos || line_.size() >= longest_line ||
         (lines_ < 0 && !line_.empty());
}

bool stderr_takes_line() {
  pollfd output{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&output, 1, 0) > 0;
}

void rank_process::pass_lines() {
  while (has_line() && stderr_takes_line()) {
    const std::size_t end = std::min({line_.find('\n'), line_.size(), longest_line});
    if (end > 0) to_stderr("[{}] {}\n", rank_, std::string_view(line_).substr(0, end));
    line_.erase(0, end < line_.size() && line_[end] == '\n' ? end + 1 : end);
  }
  if (!has_line()) read_some();
}

// False if there is nothing now, or will be nothing more.
bool rank_process::read_some() {
  if (lines_ < 0) return false;
  std::array<char, longest_line> bytes;
  const ssize_t got = read(lines_, bytes.data(), bytes.size());
  if (got > 0) line_.append(bytes.data(), static_cast<std::size_t>(got));
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    close(std::exchange(lines_, -1));
  }
  return got > 0;
}

std::uint64_t rank_process::drop_lines() {
  std::uint64_t dropped = 0;
  do {
    dropped += static_cast<std::uint64_t>(std::ranges::count(line_, '\n'));
    line_.erase(0, line_.rfind('\n') + 1);
  } while (read_some());
  return dropped + (std::exchange(line_, "").empty() ? 0 : 1);
}

void rank_process::signal(int number) const {
  if (!status_) kill(pid_, number);
}

void rank_process::look() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
}

namespace {

// Set once, before other threads exist.
int to_starter = -1;  // a pipe; -1: there is none

// Each once: the starter reads the pipe when the rank has ended, and a full one would hold it up.
// `what`: a small letter. From any thread.
void tell_starter(char what) {
  static std::atomic<unsigned> told = 0;
  const unsigned bit = 1U << (what - 'a');
  if (to_starter < 0 || (told.fetch_or(bit) & bit) != 0) return;
  // If the starter is gone, a signal has said so.
  [[maybe_unused]] const auto written = write(to_starter, &what, 1);
}

}  // namespace

void tell_writing_begins() {
  tell_starter('b');
}

void tell_checkpoint_is_saved() {
  tell_starter('s');
}

void tell_training_is_done() {
  tell_starter('d');
}

bool is_started_rank() {
  const char* const starter = std::getenv(starter_variable);
  if (starter == nullptr) return false;
  pid_t pid = 0;
  const char* const end = starter + std::string_view(starter).size();
  const char* const colon = std::from_chars(starter, end, pid).ptr;
  if (colon != end) std::from_chars(colon + 1, end, to_starter);
  unsetenv(starter_variable);  // what it starts in turn is none
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  prctl(PR_SET_NAME, program_invocation_short_name);  // not the "exe" of /proc/self/exe
  fcntl(to_starter, F_SETFD, FD_CLOEXEC);
  if (pid != getppid()) std::_Exit(exit_code_of_signal(SIGTERM));  // it died before that
  return true;
}

}  // namespace millrace
