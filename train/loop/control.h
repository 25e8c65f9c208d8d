#pragma once

#include <functional>
#include <stop_token>

#include "engine/base/error.h"

namespace millrace {

// The exit code of a process that a signal has ended.
constexpr int exit_code_of_signal(int signal) {
  return 128 + signal;
}

// Requests to save or to end, from other threads. A request to one rank applies to all.
struct train_control {
  std::stop_token stop = {};  // ends it after the current step, with a checkpoint
  // The signal that caused the stop request; the exit code is 128 more. Null: SIGINT.
  std::function<int()> ending_signal = nullptr;
  // Whether a checkpoint was asked for since the last call.
  std::function<bool()> take_save_request = nullptr;
  // Called once all initial checks have passed, before anything is written.
  std::function<void()> writing_begins = nullptr;
  // Called before the first step.
  std::function<void()> training_begins = nullptr;
  // Called after each checkpoint, once or more, and from any thread.
  std::function<void()> checkpoint_is_saved = nullptr;
  // Called once the last step has been taken and saved.
  std::function<void()> training_ends = nullptr;
  // Called from another thread, after the line on stderr and before the process exits, if a rank is
  // gone, or the job is not joined in time, and this rank cannot throw: see process_group.
  std::function<void(const error&)> process_ends = nullptr;
};

}  // namespace millrace
