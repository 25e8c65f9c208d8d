#pragma once

namespace millrace {

// The io_thread or worker_pool that the calling thread belongs to; null for the program's own
// threads. A thread that waits for an engine's threads must not be one of them.
const void* owner_of_this_thread();
// Call at the start of a thread.
void set_owner_of_this_thread(const void* owner);

}  // namespace millrace
