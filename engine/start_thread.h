#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace millrace {

// Starts a thread of this name (its first 15 characters count). It blocks all signals but those of
// its own faults (SIGSEGV and the like), so that handlers run on threads of the program. Throws
// `failure` (no_memory) where the host refuses one, as its limits of threads and of memory make it
// do.
std::thread start_thread(const std::string& name, std::function<void()> work);
// The same for a thread that is asked to stop, and joined, when it is destroyed.
std::jthread start_joined_thread(const std::string& name,
                                 std::function<void(std::stop_token)> work);

}  // namespace millrace
