#include "cli/interrupt.h"

#include <csignal>

namespace millrace::cli {
namespace {

std::atomic<bool> asked = false;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

const std::atomic<bool>& interrupted() {
  struct sigaction how{};
  how.sa_handler = [](int) { asked = true; };
  how.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int which : {SIGINT, SIGTERM}) sigaction(which, &how, nullptr);
  return asked;
}

}  // namespace millrace::cli
