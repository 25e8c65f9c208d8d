#pragma once

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/time_source.h"

namespace millrace {

using boost::system::error_code;

// A connected stream of bytes in both directions, with non-blocking operations, so that streams can
// be stacked (TLS over a proxy's tunnel over a socket). One I/O thread, one call at a time;
// destroying it closes it.
class byte_stream {
 public:
  enum class direction { read, write };
  struct moved {
    std::size_t bytes = 0;
    error_code failed;  // would_block: wait() first; eof: the peer has ended its direction
  };

  virtual ~byte_stream() = default;
  virtual moved try_read(std::span<std::byte> into) = 0;
  virtual moved try_write(std::span<const std::byte> from) = 0;
  // Waits until the direction may be ready; asio::error::timed_out at `deadline`.
  virtual awaitable<error_code> wait(direction which, time_source::time_point deadline) = 0;
};

// Reads available bytes, after waiting if there are none: returns at least one byte, or a failure.
// timed_out after `deadline`, even if bytes are always available.
awaitable<byte_stream::moved> read_some(byte_stream& from, std::span<std::byte> into,
                                        time_source& time, time_source::time_point deadline);
awaitable<error_code> write_all(byte_stream& to, std::span<const std::byte> data,
                                time_source::time_point deadline);

// The other end of a connection: an IP address and port, or the path of a unix socket.
struct address {
  std::string ip;  // empty: a unix socket
  std::string port;
  std::string path;
  bool is_v6() const { return ip.find(':') != std::string::npos; }
  bool operator==(const address&) const = default;
};

// The seam below the HTTP client: names and connections, real or simulated. One I/O thread.
class network {
 public:
  virtual ~network() = default;
  // Never empty. Must support cancellation.
  virtual awaitable<result<std::vector<address>>> resolve(std::string host, std::string port) = 0;
  virtual awaitable<result<std::unique_ptr<byte_stream>>> connect(
      address where, time_source::time_point deadline) = 0;
  // The seed of random pauses. A real network's differs between processes, so that the ranks of a
  // job do not all retry a recovered server at once.
  virtual std::uint64_t seed() const { return 0; }
};

// Names by the host's resolver, TCP without delay, unix sockets. `receive_buffer_bytes`: SO_RCVBUF;
// 0 leaves it to the kernel, whose tuning is nearly always better.
std::shared_ptr<network> real_network(std::size_t receive_buffer_bytes);

}  // namespace millrace
