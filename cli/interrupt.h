#pragma once

#include <atomic>
#include <stop_token>

namespace millrace::cli {

// True from the first SIGINT, SIGTERM or SIGHUP (unless that is ignored, as by nohup) on, so that a
// long command can end with its report. A second signal ends the process at once. Call it when the
// work begins that looks at it: before, a signal ends the process.
const std::atomic<bool>& interrupted();

// The same as a stop request, for work that waits: std::stop_callback runs on a thread of its own.
// Where stdout then takes nothing for a second, the process ends at once: who would read the report
// has stopped. Takes two descriptors.
std::stop_token stop_requested();

// 128 + the signal that came: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP; 0 where none came.
int exit_code_of_interrupt();

}  // namespace millrace::cli
