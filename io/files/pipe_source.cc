#include "io/files/pipe_source.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <sstream>
#include <vector>

#include "engine/base/error.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/timer.h"
#include "engine/files/process.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "io/read_ahead.h"

namespace millrace {
namespace {

using queue = read_ahead_source::queue;
using output = child_process::output;

constexpr std::size_t kept_stderr_bytes = 2048;
// A killed process has ended by then, unless it waits for a device.
constexpr auto killed_within = std::chrono::milliseconds(500);

// A running command. Its group is killed when this is destroyed; the owner waits for its end.
struct running {
  std::unique_ptr<child_process> process;
  std::string said = {};   // the end of its stderr
  bool is_enough = false;  // the rest of the output is not wanted
};

error cannot_start(const std::string& url, int why) {
  const errc kind = why == ENOENT ? errc::io_failed : kind_of(why);  // not the URL's object
  error e(kind, "cannot start the command");
  e.at(url).cause(why);
  if (why == ENOENT) e.hint("pipe: needs /bin/sh");
  if (why == EAGAIN) e.hint("the system refuses more processes: raise `ulimit -u`");
  return e;
}

// Reads the command's stderr to its end, and keeps only the last part.
awaitable<void> listen(std::shared_ptr<running> to) {
  std::string piece(1024, '\0');
  for (;;) {
    const ssize_t got =
        co_await to->process->read_some(output::err, std::as_writable_bytes(std::span(piece)));
    if (got <= 0) co_return;
    to->said.append(piece, 0, static_cast<std::size_t>(got));
    if (to->said.size() > kept_stderr_bytes) {
      to->said.erase(0, to->said.size() - kept_stderr_bytes);
    }
  }
}

awaitable<result<void>> wait_for_end(std::shared_ptr<running> of) {
  const int failed = co_await of->process->wait_for_end();
  if (failed != 0) co_return error(kind_of(-failed), "cannot wait for the command").cause(-failed);
  co_return result<void>();
}

// Kills the group, including processes that are left if the command has ended by itself, and
// returns the command's status; nullopt if it does not end (it waits for a device), so that nothing
// else is held up.
awaitable<std::optional<int>> ended_status(std::shared_ptr<running> of) {
  of->process->kill();
  static_cast<void>(co_await with_deadline(wait_for_end(of), killed_within,
                                           error(errc::timed_out, "not killed")));
  co_return of->process->status();
}

std::string last_line(std::string text) {
  text.erase(std::min(text.find_last_not_of(" \t\r\n") + 1, text.size()));
  text = text.substr(text.find_last_of("\r\n") + 1);
  std::erase_if(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return text.substr(0, 300);
}

std::optional<error> failure_of(int status, const std::string& said, const std::string& url) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::nullopt;
  if (status == unknown_status) {
    return error(errc::io_failed, "it is not known whether the command succeeded")
        .at(url)
        .hint("do not ignore SIGCHLD in the program, nor wait for its children elsewhere");
  }
  std::string what = WIFSIGNALED(status)
                         ? fmt::format("the command was killed by signal {}", WTERMSIG(status))
                         : fmt::format("the command ended with status {}", WEXITSTATUS(status));
  if (const std::string line = last_line(said); !line.empty())
    what += ", saying '" + redacted(line) + "'";
  return error(errc::io_failed, what).at(url).skippable().hint("run it by hand to see why");
}

awaitable<result<std::size_t>> read_output(std::shared_ptr<running> from,
                                           std::span<std::byte> into) {
  const ssize_t got = co_await from->process->read_some(output::out, into);
  if (got < 0) {
    co_return error(kind_of(static_cast<int>(-got)), "cannot read what the command writes")
        .cause(static_cast<int>(-got));
  }
  co_return static_cast<std::size_t>(got);
}

// Copies the command's output to `ahead`: the bytes of `range`.
awaitable<std::optional<error>> copy(source_context context, std::shared_ptr<running> from,
                                     std::string url, byte_range range,
                                     std::shared_ptr<queue> ahead) {
  std::uint64_t at = 0;
  while (!range.end || at < *range.end) {
    auto chunk = co_await context.memory->acquire(context.options.chunk_bytes);
    if (!chunk) co_return chunk.error();
    const auto got = co_await with_deadline(
        read_output(from, chunk->span()), context.options.read_timeout,
        error(errc::timed_out, "the command writes no data")
            .hint("source_options.read_timeout (MILLRACE_READ_TIMEOUT) sets the limit"));
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
  from->is_enough = true;
  co_return std::nullopt;
}

// Copies the command's output to its end, then waits for the command to end. A command that closes
// its output and continues gets as long as one that writes nothing.
awaitable<std::optional<error>> copy_to_end(source_context context,
                                            std::shared_ptr<running> command, std::string url,
                                            byte_range range, std::shared_ptr<queue> ahead) {
  auto failed = co_await copy(context, command, url, range, ahead);
  if (failed || command->is_enough) co_return failed;
  const auto ended = co_await with_deadline(
      wait_for_end(command), context.options.read_timeout,
      error(errc::timed_out, "the command has closed its output and does not end")
          .hint("source_options.read_timeout (MILLRACE_READ_TIMEOUT) sets the limit"));
  if (!ended) co_return error(ended.error()).at(url).skippable();
  co_return std::nullopt;
}

awaitable<void> run(source_context context, std::shared_ptr<running> command, std::string url,
                    byte_range range, std::shared_ptr<queue> ahead) {
  std::optional<error> failed;
  std::exception_ptr stopped;
  auto listening = context.tasks.spawn_stoppable(listen(command));
  try {
    failed = co_await copy_to_end(context, command, url, range, ahead);
  } catch (...) {
    stopped = std::current_exception();
  }
  // From here to the end it must not be stopped.
  (co_await this_fiber).ignore_stops();
  const auto status = co_await ended_status(command);
  if (stopped) std::rethrow_exception(stopped);
  if (!failed && !command->is_enough && status) failed = failure_of(*status, command->said, url);
  failed ? ahead->fail(*failed) : ahead->close();
}

awaitable<result<std::unique_ptr<byte_source>>> open_pipe(
    source_context context, std::string text, url where, byte_range range,
    std::shared_ptr<std::map<std::string, bool>> told) {
  if (!context.options.allow_pipe) {
    error refused(errc::not_allowed, "pipe: URLs run commands, which is not allowed");
    const auto native = native_url(where.path);
    co_return refused.at(text).hint(
        native ? fmt::format("use {}, which needs no process; or set source_options.allow_pipe "
                             "(MILLRACE_ALLOW_PIPE=1)",
                             redacted(*native))
               : "set source_options.allow_pipe (MILLRACE_ALLOW_PIPE=1) where you trust the URLs");
  }
  ++context.counters.requests;
  const std::string shown = redacted(text);
  if (const auto native = native_url(where.path); native && !std::exchange((*told)[shown], true)) {
    log_notice(
        fmt::format("{}: {} gives the same bytes without a process", shown, redacted(*native)));
  }
  auto command = std::make_shared<running>();
  const int why = host_processes().start(where.path, context.io.executor(), command->process);
  if (why != 0) co_return cannot_start(text, -why);
  auto ahead = std::make_shared<queue>(context.io.executor(), 2);
  auto source = std::make_unique<read_ahead_source>(ahead);
  scope& tasks = context.tasks;
  source->produced_by(tasks.spawn_stoppable(
      run(std::move(context), std::move(command), std::move(text), range, std::move(ahead))));
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
  const auto first_url = [&](auto is_read_by_it) -> std::optional<std::string> {
    for (const std::string& word : words) {
      const auto where = parse_url(word);
      if (where && is_read_by_it(*where)) return word;
    }
    return std::nullopt;
  };
  const auto of_store = [](std::string_view scheme) {
    return [scheme](const url& where) { return where.scheme == scheme; };
  };
  const auto value_after = [&](std::initializer_list<std::string_view> flags) {
    const auto at = std::ranges::find_if(
        words, [&](const std::string& w) { return std::ranges::find(flags, w) != flags.end(); });
    return at == words.end() || at + 1 == words.end() ? std::string() : *(at + 1);
  };
  if (program == "curl" || program == "wget") return first_url(is_web);
  if (program == "gsutil" || program == "gcloud") return first_url(of_store("gs"));
  if (program == "aws" || program == "s5cmd") return first_url(of_store("s3"));
  if (program == "ais") return first_url(of_store("ais"));
  if (program == "az") {
    const std::string container = value_after({"-c", "--container-name"});
    const std::string name = value_after({"-n", "--name"});
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
