#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "engine/coroutines/async.h"
#include "engine/files/process.h"

namespace millrace::testing {

// A command's actions and their times, by the clock.
struct script {
  using duration = std::chrono::microseconds;
  static constexpr duration never = duration::max();
  struct writing {
    duration after;  // after the previous one; never: no more output
    std::string bytes;
    child_process::output to = child_process::output::out;
  };

  int start_fails = 0;  // an errno
  std::vector<writing> writes = {};
  duration closes_after{0};  // its output, after the last write; never: others hold it open
  duration ends_after{0};    // after the last write
  int status = 0;            // as from waitpid(2): 3 << 8 is exit code 3, 9 is signal 9
  bool is_deaf = false;      // waits for a device: killing does not end it
};

// Commands that are scripts. Replaces the system's commands while it exists. One thread.
class scripted_processes final : public process_starter {
 public:
  explicit scripted_processes(std::function<script(const std::string& command)> of);
  ~scripted_processes() override;
  scripted_processes(const scripted_processes&) = delete;
  scripted_processes& operator=(const scripted_processes&) = delete;

  int start(const std::string& command, const asio::any_io_executor& executor,
            std::unique_ptr<child_process>& to) override;

  // Called before each start, read and wait. Returns an errno, and the call then has no effect, or
  // 0.
  static inline std::function<int()> fault;

  int started = 0;
  int running = 0;  // not yet killed, or ended with their status read

 private:
  std::function<script(const std::string&)> of_;
};

}  // namespace millrace::testing
