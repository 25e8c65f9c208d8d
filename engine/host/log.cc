#include "engine/host/log.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "engine/base/process_wide.h"
#include "engine/host/standard_error.h"

namespace millrace {
namespace {

struct log_state {
  std::atomic<log_level> level = log_level::notice;
  std::mutex mutex;
  std::shared_ptr<const std::function<void(std::string_view)>> sink;  // guarded by mutex

  void begin_in_child() { std::construct_at(&mutex); }
};

log_state& logging() {
  return process_wide<log_state>();
}

thread_local bool is_in_sink = false;  // which holds the mutex

// False if the sink throws: that must not end a run.
bool told(const std::function<void(std::string_view)>& sink, std::string_view line) {
  const struct scope {
    scope() { is_in_sink = true; }
    ~scope() { is_in_sink = false; }
  } inside;
  try {
    sink(line);
    return true;
  } catch (...) {
    return false;
  }
}

void write(log_level at, std::string_view line) {
  log_state& s = logging();
  if (s.level < at) return;
  if (!is_in_sink) {
    const std::scoped_lock lock(s.mutex);
    const auto sink = s.sink;
    if (sink && told(*sink, line)) return;
  }
  to_stderr("millrace: {}\n", line);
}

}  // namespace

void set_log_level(log_level level) {
  logging().level = level;
}

void set_log_level(std::string_view name) {
  set_log_level(name == "quiet"   ? log_level::quiet
                : name == "debug" ? log_level::debug
                                  : log_level::notice);
}

void set_log_sink(std::function<void(std::string_view)> sink) {
  auto next = sink ? std::make_shared<const std::function<void(std::string_view)>>(std::move(sink))
                   : nullptr;
  std::unique_lock lock(logging().mutex, std::defer_lock);
  if (!is_in_sink) lock.lock();
  logging().sink.swap(next);
}

void log_notice(std::string_view line) {
  write(log_level::notice, line);
}
void log_debug(std::string_view line) {
  write(log_level::debug, line);
}

}  // namespace millrace
