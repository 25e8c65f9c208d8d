#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/coroutines/async.h"

namespace millrace {

// The status of a command that other code has waited for, or that ended while SIGCHLD was ignored.
inline constexpr int unknown_status = -1;

// A running command. It has its own process group, which is killed when this object is destroyed
// and when this process dies, however it dies. One I/O thread, one call at a time per output.
class child_process {
 public:
  enum class output { out, err };

  virtual ~child_process() = default;
  // Reads at least one byte of its output, waiting for it; 0 when all writers have closed it;
  // -errno. Can be cancelled.
  virtual awaitable<ssize_t> read_some(output from, std::span<std::byte> into) = 0;
  // Waits until it has ended; 0 or -errno. Can be cancelled.
  virtual awaitable<int> wait_for_end() = 0;
  // Kills its process group. May be called repeatedly.
  virtual void kill() = 0;
  // Call once, after kill(): its status as from waitpid(2); nullopt while a device blocks it;
  // unknown_status if other code has waited for it.
  virtual std::optional<int> status() = 0;

 protected:
  child_process() = default;
  child_process(const child_process&) = default;
  child_process& operator=(const child_process&) = default;
};

// The process seam: starts commands, so that a simulator can take the system's place.
class process_starter {
 public:
  virtual ~process_starter() = default;
  // Runs `command` in a shell, with empty input, none of our descriptors, and default signals.
  // Returns 0 or -errno: EAGAIN or ENOMEM if there are too many processes, EMFILE, or ENOENT
  // without a shell. Its output is read on `executor`.
  virtual int start(const std::string& command, const asio::any_io_executor& executor,
                    std::unique_ptr<child_process>& to) = 0;

 protected:
  process_starter() = default;
  process_starter(const process_starter&) = default;
  process_starter& operator=(const process_starter&) = default;
};

// The system's, or the simulator that has taken its place (engine/host/seams.h).
process_starter& host_processes();

}  // namespace millrace
