#pragma once

#include <cstdint>

namespace millrace::testing {

// This program's operator new, which can be made to fail. One thread.
struct allocations {
  // While armed, the `nth` allocation from now on (counted from 1), or with `for_ever` all from
  // that one on, throw std::bad_alloc. nth 0: none fail, they are only counted. Allocations during
  // the lifetime of an `unhooked` are left out.
  static void arm(std::uint64_t nth, bool for_ever);
  // Ends a permanent failure: code that received it now releases what it holds.
  static void relent();
  // Returns the number of allocations while it was armed.
  static std::uint64_t disarm();
  // Blocks allocated and not yet freed since the program began.
  static std::int64_t live();
};

}  // namespace millrace::testing
