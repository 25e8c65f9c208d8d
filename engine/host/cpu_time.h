#pragma once

#include <time.h>

namespace millrace {

// Seconds by one of the kernel's clocks; 0 if it cannot be read.
inline double seconds_of(clockid_t clock) {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// CPU time of all threads of this process.
inline double process_cpu_seconds() {
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

// CPU time of the calling thread.
inline double thread_cpu_seconds() {
  return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace millrace
