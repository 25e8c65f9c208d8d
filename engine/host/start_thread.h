#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace millrace {

// Starts a thread of this name (its first 15 characters count). It blocks all signals except those
// of its own faults (SIGSEGV and the like), so that handlers run on the program's threads. Throws
// `failure` (no_memory) if the host refuses it because of its limits on threads or memory.
std::thread start_thread(const std::string& name, std::function<void()> work);
// The same for a thread whose destructor asks it to stop and joins it.
std::jthread start_joined_thread(const std::string& name,
                                 std::function<void(std::stop_token)> work);

}  // namespace millrace
