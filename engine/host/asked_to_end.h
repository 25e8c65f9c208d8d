#pragma once

#include <atomic>

namespace millrace {

// Set by a program's signal handler when a signal asks it to end. Unbounded waits for other
// processes poll it. Any thread.
inline std::atomic<bool> asked_to_end = false;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace millrace
