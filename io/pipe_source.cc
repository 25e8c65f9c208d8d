#include "io/pipe_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <csignal>
#include <map>
#include <sstream>
#include <vector>

#include "engine/log.h"
#include "engine/timer.h"
#include "io/read_ahead.h"

extern char** environ;

namespace millrace {
namespace {

using queue = read_ahead_source::queue;
using descriptor = asio::posix::stream_descriptor;

constexpr std::size_t kept_stderr_bytes = 2048;

// A running command. Its group is killed when this goes; that it has ended is waited for by who
// owns it.
struct child {
  explicit child(const asio::any_io_executor& executor)
      : out(executor), complaints(executor), ended(executor) {}
  ~child() { kill_group(); }
  child(const child&) = delete;
  child& operator=(const child&) = delete;

  void kill_group() {
    if (pid > 0) kill(-pid, SIGKILL);
    if (watcher > 0) {
      kill(watcher, SIGKILL);
      waitpid(std::exchange(watcher, 0), nullptr, 0);
    }
    if (lifeline >= 0) close(std::exchange(lifeline, -1));
  }

  pid_t pid = 0;
  // Kills the group when this process dies, however it dies: it waits for the end of a pipe whose
  // other end is held here alone.
  pid_t watcher = 0;
  int lifeline = -1;
  descriptor out;
  descriptor complaints;
  descriptor ended;  // a pidfd
  std::string said;  // the end of its stderr
  bool killed = false;
};

error cannot_start(const std::string& url, int why) {
  return error(errc::io_failed, "cannot start the command").at(url).cause(why);
}

// Both ends of a pipe, closed on exec; the first is ours.
struct pipe_ends {
  int ours = -1;
  int theirs = -1;
  bool open() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return false;
    ours = fds[0];
    theirs = fds[1];
    return true;
  }
};

void watch(child& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  command.lifeline = ends[1];
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[0], STDIN_FILENO);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_WRONLY, 0);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string shell = "sh";
  std::string flag = "-c";
  std::string text = fmt::format("read -r _; kill -9 -{}", command.pid);
  char* const arguments[] = {shell.data(), flag.data(), text.data(), nullptr};
  if (posix_spawn(&command.watcher, "/bin/sh", &files, &attributes, arguments, environ) != 0) {
    command.watcher = 0;
  }
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(ends[0]);
}

result<std::shared_ptr<child>> start(const std::string& command, const std::string& url,
                                     const asio::any_io_executor& executor) {
  auto made = std::make_shared<child>(executor);
  pipe_ends out;
  pipe_ends err;
  if (!out.open() || !err.open()) return cannot_start(url, errno);
  made->out.assign(out.ours);
  made->complaints.assign(err.ours);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out.theirs, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err.theirs, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (const int s : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) sigaddset(&usual, s);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string shell = "sh";
  std::string flag = "-c";
  std::string text = command;
  char* const arguments[] = {shell.data(), flag.data(), text.data(), nullptr};
  const int failed = posix_spawn(&made->pid, "/bin/sh", &files, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(out.theirs);
  close(err.theirs);
  if (failed != 0) {
    made->pid = 0;
    return cannot_start(url, failed);
  }
  watch(*made);
  const long fd = syscall(SYS_pidfd_open, made->pid, 0);
  if (fd < 0) return cannot_start(url, errno);
  made->ended.assign(static_cast<int>(fd));
  return made;
}

// Reads what the command complains about, to its end; only the end of it is kept.
awaitable<void> listen(std::shared_ptr<child> to) {
  std::string piece(1024, '\0');
  for (;;) {
    const auto [failed, got] =
        co_await to->complaints.async_read_some(asio::buffer(piece), no_throw);
    if (failed) co_return;
    to->said.append(piece, 0, got);
    if (to->said.size() > kept_stderr_bytes) {
      to->said.erase(0, to->said.size() - kept_stderr_bytes);
    }
  }
}

// The command's status, once it has ended; waits for that even when stopped, having killed it.
awaitable<int> status_of(std::shared_ptr<child> of) {
  const bool threw = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await of->ended.async_wait(descriptor::wait_read, no_throw);
  int status = 0;
  of->kill_group();  // what it has left behind; its number is its own until it is waited for
  waitpid(of->pid, &status, 0);
  of->pid = 0;
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  co_await asio::this_coro::throw_if_cancelled(threw);
  co_return status;
}

std::string last_line(std::string text) {
  text.erase(std::min(text.find_last_not_of(" \t\r\n") + 1, text.size()));
  text = text.substr(text.find_last_of("\r\n") + 1);
  std::erase_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return text.substr(0, 300);
}

std::optional<error> failure_of(int status, const std::string& said, const std::string& url) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
  std::string what = WIFSIGNALED(status)
                         ? fmt::format("the command was killed by signal {}", WTERMSIG(status))
                         : fmt::format("the command ended with status {}", WEXITSTATUS(status));
  if (const std::string line = last_line(said); !line.empty()) what += ", saying '" + line + "'";
  return error(errc::io_failed, what).at(url).skippable().hint("run it by hand to see why");
}

awaitable<result<std::size_t>> read_some(descriptor* from, std::span<std::byte> into) {
  const auto [failed, got] =
      co_await from->async_read_some(asio::buffer(into.data(), into.size()), no_throw);
  if (failed == asio::error::eof) co_return std::size_t{0};
  if (failed) co_return error(errc::io_failed, failed.message());
  co_return got;
}

// Its output to `ahead`, leaving out `skip` bytes at its front, up to `end`.
awaitable<std::optional<error>> copy(source_context context, std::shared_ptr<child> from,
                                     std::string url, byte_range range,
                                     std::shared_ptr<queue> ahead) {
  std::uint64_t at = 0;
  while (!range.end || at < *range.end) {
    auto chunk = co_await context.memory->acquire(context.options.chunk_bytes);
    if (!chunk) co_return chunk.error();
    const auto got =
        co_await with_deadline(read_some(&from->out, chunk->span()), context.options.read_timeout,
                               error(errc::timed_out, "the command writes nothing")
                                   .hint("MILLRACE_READ_TIMEOUT is how long it may"));
    if (!got) co_return error(got.error()).at(url).offset(at).skippable();
    if (*got == 0) co_return std::nullopt;
    const std::uint64_t first = std::max(at, range.begin);
    const std::uint64_t last = std::min(at + *got, range.end.value_or(at + *got));
    context.counters.bytes += *got;
    if (last > first) {
      bytes piece = std::move(*chunk).freeze(*got).slice(first - at, last - first);
      const auto taken = co_await ahead->push(std::move(piece));
      if (!taken || !*taken) co_return std::nullopt;
    }
    at += *got;
  }
  from->killed = true;  // there is more, which nobody wants
  co_return std::nullopt;
}

awaitable<void> run(source_context context, std::shared_ptr<child> command, std::string url,
                    byte_range range, std::shared_ptr<queue> ahead) {
  std::optional<error> failed;
  try {
    auto listening = context.tasks.spawn_stoppable(listen(command));
    failed = co_await copy(context, command, url, range, ahead);
    if (failed || command->killed) command->kill_group();
    const int status = co_await status_of(command);
    if (!failed && !command->killed) failed = failure_of(status, command->said, url);
  } catch (...) {
    // Stopped: the group is killed; that the command itself has ended is still waited for.
    command->kill_group();
    const auto thrown = std::current_exception();
    if (command->pid > 0) waitpid(std::exchange(command->pid, 0), nullptr, 0);
    std::rethrow_exception(thrown);
  }
  failed ? ahead->fail(*failed) : ahead->close();
}

awaitable<result<std::unique_ptr<byte_source>>> open_pipe(
    source_context context, std::string text, url where, byte_range range,
    std::shared_ptr<std::map<std::string, bool>> told) {
  if (!context.options.allow_pipe) {
    error refused(errc::not_allowed, "pipe: runs commands, which is not allowed");
    const auto native = native_url(where.path);
    co_return refused.at(text).hint(
        native ? fmt::format("use {}, which needs no process; or set MILLRACE_ALLOW_PIPE=1",
                             redacted(*native))
               : "set MILLRACE_ALLOW_PIPE=1, or give --allow-pipe, where you trust the URLs");
  }
  ++context.counters.requests;
  const std::string program = where.path.substr(0, where.path.find(' '));
  if (const auto native = native_url(where.path);
      native && !std::exchange((*told)[program], true)) {
    log_notice(fmt::format("pipe:{} ...: {} gives the same bytes without a process", program,
                           redacted(*native)));
  }
  auto command = start(where.path, text, context.io.executor());
  if (!command) co_return command.error();
  auto ahead = std::make_shared<queue>(context.io.executor(), 2);
  auto source = std::make_unique<read_ahead_source>(ahead);
  scope& tasks = context.tasks;
  source->produced_by(tasks.spawn_stoppable(
      run(std::move(context), std::move(*command), std::move(text), range, std::move(ahead))));
  co_return std::unique_ptr<byte_source>(std::move(source));
}

}  // namespace

std::optional<std::string> native_url(const std::string& command) {
  if (command.find_first_of("|;&><$`") != std::string::npos) return std::nullopt;
  std::istringstream in(command);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    std::erase_if(word, [](char c) { return c == '\'' || c == '"'; });
    words.push_back(word);
  }
  if (words.empty()) return std::nullopt;
  const std::string program = words[0].substr(words[0].rfind('/') + 1);
  const auto first_with =
      [&](std::initializer_list<std::string_view> begins) -> std::optional<std::string> {
    for (const std::string& word : words) {
      if (std::ranges::any_of(begins, [&](auto b) { return word.starts_with(b); })) return word;
    }
    return std::nullopt;
  };
  const auto value_behind = [&](std::initializer_list<std::string_view> flags) {
    const auto at = std::ranges::find_if(
        words, [&](const std::string& w) { return std::ranges::find(flags, w) != flags.end(); });
    return at == words.end() || at + 1 == words.end() ? std::string() : *(at + 1);
  };
  if (program == "curl" || program == "wget") return first_with({"http://", "https://"});
  if (program == "gsutil" || program == "gcloud") return first_with({"gs://"});
  if (program == "aws" || program == "s5cmd") return first_with({"s3://"});
  if (program == "ais") return first_with({"ais://"});
  if (program == "az") {
    const std::string container = value_behind({"-c", "--container-name"});
    const std::string name = value_behind({"-n", "--name"});
    if (!container.empty() && !name.empty()) return "az://" + container + "/" + name;
  }
  const bool reads_files = program == "cat" || program == "mbuffer" || program == "fread";
  if (reads_files && words.size() >= 2 && !words.back().starts_with('-')) return words.back();
  return std::nullopt;
}

source_factory pipe_source_factory() {
  return [told = std::make_shared<std::map<std::string, bool>>()](
             source_context context, std::string text, url where, byte_range range) {
    return open_pipe(std::move(context), std::move(text), std::move(where), range, told);
  };
}

}  // namespace millrace
