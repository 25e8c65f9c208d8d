#include "engine/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>

namespace millrace {
namespace {

struct log_state {
  std::atomic<log_level> level = log_level::notice;
  std::mutex mutex;
  std::function<void(std::string_view)> sink;  // guarded by mutex
};

log_state& state() {
  static log_state s;
  return s;
}

void write(log_level at, std::string_view line) {
  log_state& s = state();
  if (s.level < at) return;
  const std::scoped_lock lock(s.mutex);
  if (s.sink) {
    s.sink(line);
  } else {
    const std::string whole = "millrace: " + std::string(line) + "\n";
    std::fwrite(whole.data(), 1, whole.size(), stderr);
  }
}

}  // namespace

void set_log_level(log_level level) {
  state().level = level;
}

void set_log_level(std::string_view name) {
  set_log_level(name == "quiet"   ? log_level::quiet
                : name == "debug" ? log_level::debug
                                  : log_level::notice);
}

void set_log_sink(std::function<void(std::string_view)> sink) {
  const std::scoped_lock lock(state().mutex);
  state().sink = std::move(sink);
}

void log_notice(std::string_view line) {
  write(log_level::notice, line);
}
void log_debug(std::string_view line) {
  write(log_level::debug, line);
}

}  // namespace millrace
