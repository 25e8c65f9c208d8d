#pragma once

namespace millrace::testing {

// While one of these exists, allocations on this thread are the test's own, and do not fail
// (tests/simulation/allocations.h).
struct unhooked {
  unhooked() { ++depth; }
  ~unhooked() { --depth; }
  unhooked(const unhooked&) = delete;
  unhooked& operator=(const unhooked&) = delete;

  static inline thread_local int depth = 0;
};

}  // namespace millrace::testing
