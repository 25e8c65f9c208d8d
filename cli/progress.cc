#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "cli/flag_names.h"
#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "engine/host/program.h"
#include "engine/host/standard_error.h"
#include "engine/host/start_thread.h"
#include "io/names/url.h"

namespace millrace::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto first_after = 1s;
constexpr auto redrawn_every = 250ms;
constexpr auto line_every = 30s;

// The state of the terminal. All threads write lines under the mutex.
struct terminal {
  std::mutex mutex;
  bool allowed = true;
  bool shown = false;  // a progress line, not yet ended

  void erase() {
    if (std::exchange(shown, false)) to_stderr("\r\x1b[K");
  }
};

terminal& screen() {
  static terminal t;
  return t;
}

bool on_terminal() {
  static const bool answer = isatty(STDERR_FILENO) == 1;
  return answer;
}

}  // namespace

void set_up_screen(bool shows_progress) {
  screen().allowed = shows_progress;
  set_log_sink([](std::string_view line) {
    const std::string told = millrace::in_program_words(line, flag_names);
    const std::scoped_lock lock(screen().mutex);
    if (on_terminal()) screen().erase();
    to_stderr("millrace: {}\n", told);
  });
}

void print_line(std::string_view line) {
  const std::scoped_lock lock(screen().mutex);
  screen().erase();
  fmt::print("{}\n", line);
  flush_stdout();
}

progress::progress(std::string command, amount_of_work all, std::function<work_done()> look)
    : command_(std::move(command)), all_(all), look_(std::move(look)) {
  if (!screen().allowed) return;
  thread_ =
      start_joined_thread("mr-progress", [this](const std::stop_token& stopped) { run(stopped); });
}

progress::~progress() {
  end();
}

void progress::end() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  const std::scoped_lock lock(screen().mutex);
  screen().erase();
}

void progress::run(const std::stop_token& stopped) {
  auto next = begin_ + (on_terminal() ? first_after : std::chrono::milliseconds(line_every));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_until(lock, stopped, next, [&] { return stopped.stop_requested(); })) {
    const std::string text = line();
    const std::scoped_lock at_screen(screen().mutex);
    if (on_terminal()) {
      screen().shown = true;
      to_stderr("\r{}\x1b[K", text);
    } else {
      to_stderr("{}\n", text);
    }
    next += on_terminal() ? redrawn_every : std::chrono::milliseconds(line_every);
  }
}

std::string progress::line() const {
  const work_done now = look_();
  const double elapsed = seconds_since(begin_);
  const auto share = [](double part, double whole) {
    return whole > 0 ? std::min(1.0, part / whole) : 0.0;
  };
  const double part = all_.seconds > 0 ? share(elapsed, all_.seconds)
                      : all_.bytes > 0
                          ? share(static_cast<double>(now.bytes), static_cast<double>(all_.bytes))
                          : share(static_cast<double>(now.items), static_cast<double>(all_.items));
  std::string out = fmt::format("{}: ", command_);
  if (part > 0) out += fmt::format("{:.0f} %, ", 100 * part);
  if (all_.items > 1) {
    out += fmt::format("{} of {}, ", now.items, counted(all_.items, all_.noun));
  } else if (now.items > 0 && all_.items == 0) {
    out += fmt::format("{}, ", counted(now.items, all_.noun));
  }
  if (now.bytes > 0) {
    out += fmt::format("{}, {:.0f} MB/s, ", format_bytes(now.bytes),
                       static_cast<double>(now.bytes) / 1e6 / elapsed);
  }
  if (part > 0) return out + duration_text(elapsed * (1 - part) / part) + " left";
  return out + duration_text(elapsed);
}

std::uint64_t bytes_of_files(const std::vector<std::string>& urls) {
  std::uint64_t sum = 0;
  for (const std::string& url : urls) {
    const auto where = parse_url(url);
    if (!where || where->scheme != "file") return 0;
    std::error_code failed;
    const auto size = std::filesystem::file_size(where->path, failed);
    if (failed) return 0;
    sum += size;
  }
  return sum;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace millrace::cli
