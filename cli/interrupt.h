#pragma once

#include <atomic>
#include <stop_token>

namespace millrace::cli {

// True from the first SIGINT or SIGTERM on, so that a long command can end with its report. A
// second signal ends the process at once. Call before the threads are started.
const std::atomic<bool>& interrupted();

// The same as a stop request, for work that waits: std::stop_callback runs on a thread of its own.
std::stop_token stop_requested();

// 128 + the signal that came: 130 for SIGINT, 143 for SIGTERM; 0 where none came.
int exit_code_of_interrupt();

}  // namespace millrace::cli
