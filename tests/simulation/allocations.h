#pragma once

#include <cstdint>

namespace millrace::testing {

// operator new of this program, which can be made to fail. One thread.
struct allocations {
  // While armed, the `nth` allocation from now on (counted from 1), or with `for_ever` all from
  // that one on, throw std::bad_alloc. nth 0: none, they are only counted. What is allocated while
  // an `unhooked` lives is left out.
  static void arm(std::uint64_t nth, bool for_ever);
  // A failure for ever is over: who was told of it lets go of what it has.
  static void relent();
  // How many there were while it was armed.
  static std::uint64_t disarm();
  // Blocks allocated and not yet freed, since the program began.
  static std::int64_t live();
};

}  // namespace millrace::testing
