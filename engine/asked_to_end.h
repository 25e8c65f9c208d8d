#pragma once

#include <atomic>

namespace millrace {

// Set by a program's signal handler, once a signal asks it to end: what waits for others without a
// bound looks at it again and again. Any thread.
inline std::atomic<bool> asked_to_end = false;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace millrace
