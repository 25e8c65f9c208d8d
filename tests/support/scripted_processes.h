#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "engine/async.h"
#include "engine/process.h"

namespace millrace::testing {

// What a command does, and when, in the clock's time.
struct script {
  using duration = std::chrono::microseconds;
  static constexpr duration never = duration::max();
  struct writing {
    duration after;  // the one before; never: nothing more comes
    std::string bytes;
    child_process::output to = child_process::output::out;
  };

  int start_fails = 0;  // an errno
  std::vector<writing> writes = {};
  duration closes_after{0};  // its output, after the last writing; never: others hold it open
  duration ends_after{0};    // after the last writing
  int status = 0;            // as waitpid(2) has it: 3 << 8 is exit code 3, 9 is signal 9
  bool is_deaf = false;      // a device holds it: killing does not end it
};

// Commands that are scripts. While it lives, it stands in the system's place. One thread.
class scripted_processes final : public process_starter {
 public:
  explicit scripted_processes(std::function<script(const std::string& command)> of);
  ~scripted_processes() override;
  scripted_processes(const scripted_processes&) = delete;
  scripted_processes& operator=(const scripted_processes&) = delete;

  int start(const std::string& command, const asio::any_io_executor& executor,
            std::unique_ptr<child_process>& to) override;

  // An errno for a call, or 0: asked before each start, read and wait, which then has no effect.
  static inline std::function<int()> fault;

  int started = 0;
  int running = 0;  // neither ended by themselves and asked for their status, nor killed

 private:
  std::function<script(const std::string&)> of_;
};

}  // namespace millrace::testing
