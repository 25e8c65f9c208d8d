#pragma once

namespace millrace {

// The io_thread or the worker_pool that the calling thread belongs to; null for the program's own
// threads. Those who wait for an engine's threads must not be one of them.
const void* owner_of_this_thread();
// At the begin of a thread.
void set_owner_of_this_thread(const void* owner);

}  // namespace millrace
