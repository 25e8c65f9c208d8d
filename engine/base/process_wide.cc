#include "engine/base/process_wide.h"

#include <unistd.h>

#include <atomic>

namespace millrace {
namespace {

std::atomic<unsigned> forks = 0;

}  // namespace

unsigned process_number() noexcept {
  static const bool are_counted =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); }) == 0;
  return are_counted ? forks.load(std::memory_order_relaxed) : static_cast<unsigned>(getpid());
}

}  // namespace millrace
