#pragma once

#include <atomic>

namespace millrace::cli {

// True from the first SIGINT or SIGTERM on, so that a long command can end with its report. A
// second signal ends the process at once. Call before the threads are started.
const std::atomic<bool>& interrupted();

}  // namespace millrace::cli
