#pragma once

#include <atomic>
#include <stop_token>

namespace millrace::cli {

// Becomes true at the first SIGINT, SIGTERM or SIGHUP (unless ignored, as by nohup), so that a long
// command can end with its report. A second signal ends the process at once. Call it when the work
// that polls it begins: until then a signal ends the process.
const std::atomic<bool>& interrupted();

// The same as a stop request, for work that waits; std::stop_callback runs on a separate thread. If
// stdout then stays blocked for a second, the process ends, because nobody reads the report. Takes
// two descriptors.
std::stop_token stop_requested();

// 128 + the signal: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP; 0 if there was none.
int exit_code_of_interrupt();

}  // namespace millrace::cli
