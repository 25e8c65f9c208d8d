#include "io/http/transport.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <random>

#include "engine/coroutines/async.h"
#include "io/http/name_lookup.h"
#include "io/names/url.h"

namespace millrace {
namespace {

using asio::ip::tcp;
using socket_type = asio::generic::stream_protocol::socket;
using time_point = time_source::time_point;

// A socket, and the timer that ends its waits. The timer is set again only when it fires or when a
// deadline comes sooner, not for every read.
class watched_socket : public std::enable_shared_from_this<watched_socket> {
 public:
  explicit watched_socket(const asio::any_io_executor& executor)
      : socket(executor), timer_(executor) {}

  awaitable<error_code> wait(byte_stream::direction which, time_point deadline) {
    begin(deadline);
    const auto [failed] = co_await socket.async_wait(
        which == byte_stream::direction::read ? socket_type::wait_read : socket_type::wait_write,
        no_throw);
    co_return end(failed);
  }
  awaitable<error_code> connect(socket_type::endpoint_type where, time_point deadline) {
    begin(deadline);
    const auto [failed] = co_await socket.async_connect(where, no_throw);
    co_return end(failed);
  }
  void close() {
    error_code ignored;
    socket.close(ignored);
    timer_.cancel();
  }

  socket_type socket;

 private:
  void begin(time_point deadline) {
    deadline_ = deadline;
    expired_ = false;
    if (!armed_ || deadline < timer_.expiry()) arm();
  }
  error_code end(error_code failed) {
    deadline_ = time_point::max();
    return expired_ ? error_code(asio::error::timed_out) : failed;
  }
  void arm() {
    armed_ = false;
    timer_.expires_at(deadline_);
    timer_.async_wait([weak = weak_from_this()](error_code cancelled) {
      const auto self = weak.lock();
      if (!self || cancelled) return;
      self->fired();
    });
    armed_ = true;
  }
  void fired() {
    armed_ = false;
    if (deadline_ == time_point::max()) return;
    if (deadline_ > steady_clock::now()) {
      try {
        return arm();
      } catch (const std::bad_alloc&) {
        armed_ = false;  // without memory for another timer, the wait ends with this one
      }
    }
    expired_ = true;
    error_code ignored;
    socket.cancel(ignored);
  }

  steady_timer timer_;
  time_point deadline_ = time_point::max();
  bool armed_ = false;
  bool expired_ = false;
};

class socket_stream final : public byte_stream {
 public:
  explicit socket_stream(std::shared_ptr<watched_socket> s) : watched_(std::move(s)) {}
  ~socket_stream() override { watched_->close(); }
  socket_stream(const socket_stream&) = delete;
  socket_stream& operator=(const socket_stream&) = delete;

  moved try_read(std::span<std::byte> into) override {
    return outcome(recv(watched_->socket.native_handle(), into.data(), into.size(), MSG_DONTWAIT),
                   true);
  }
  moved try_write(std::span<const std::byte> from) override {
    return outcome(send(watched_->socket.native_handle(), from.data(), from.size(),
                        MSG_DONTWAIT | MSG_NOSIGNAL),
                   false);
  }
  awaitable<error_code> wait(direction which, time_point deadline) override {
    return watched_->wait(which, deadline);
  }

 private:
  static moved outcome(ssize_t n, bool reading) {
    if (n > 0) return {static_cast<std::size_t>(n), {}};
    if (n == 0) return {0, reading ? error_code(asio::error::eof) : error_code()};
    if (errno == EAGAIN || errno == EINTR) return {0, asio::error::would_block};
    return {0, error_code(errno, boost::system::system_category())};
  }

  std::shared_ptr<watched_socket> watched_;
};

error connect_error(const address& where, error_code why) {
  const std::string to =
      where.ip.empty()
          ? where.path
          : fmt::format(fmt::runtime(where.is_v6() ? "[{}]:{}" : "{}:{}"), where.ip, where.port);
  if (why == asio::error::timed_out) {
    return error(errc::timed_out, fmt::format("no connection to {} in time", to)).retryable();
  }
  if (why == asio::error::operation_aborted) return error(errc::stopped, "stopped");
  return error(errc::connect_failed, fmt::format("cannot connect to {} ({})", to, why.message()))
      .retryable();
}

constexpr std::size_t most_socket_path_bytes = sizeof(sockaddr_un::sun_path) - 1;

class asio_network final : public network {
 public:
  explicit asio_network(std::size_t receive_buffer_bytes)
      : receive_buffer_bytes_(receive_buffer_bytes) {}

  awaitable<result<std::vector<address>>> resolve(std::string host, std::string port) override {
    const auto found = co_await names_.addresses_of(std::move(host));
    if (!found) co_return found.error();
    std::vector<address> out;
    for (const std::string& ip : *found) out.push_back({.ip = ip, .port = port, .path = {}});
    co_return out;
  }

  std::uint64_t seed() const override {
    std::random_device random;
    return (std::uint64_t{random()} << 32) + random();
  }

  awaitable<result<std::unique_ptr<byte_stream>>> connect(address where,
                                                          time_point deadline) override {
    const auto watched = std::make_shared<watched_socket>(co_await this_executor);
    error_code failed;
    socket_type::endpoint_type endpoint;
    if (where.ip.empty()) {
      if (where.path.empty() || where.path.size() > most_socket_path_bytes) {
        co_return error(errc::usage, "the path of a unix socket has 1 to 107 bytes");
      }
      endpoint = asio::local::stream_protocol::endpoint(where.path);
    } else {
      const auto ip = asio::ip::make_address(where.ip, failed);
      if (failed) co_return connect_error(where, failed);
      const auto port = port_number(where.port);
      if (!port) co_return error(errc::usage, fmt::format("'{}' is not a port", where.port));
      endpoint = tcp::endpoint(ip, *port);
    }
    watched->socket.open(endpoint.protocol(), failed);
    if (failed == asio::error::no_descriptors) {
      co_return error(kind_of(EMFILE), "no file descriptor is left for a connection").cause(EMFILE);
    }
    if (failed) co_return connect_error(where, failed);
    if (receive_buffer_bytes_ > 0) {
      const asio::socket_base::receive_buffer_size size(static_cast<int>(receive_buffer_bytes_));
      watched->socket.set_option(size, failed);
    }
    // Asio cannot set it when it creates the socket.
    fcntl(watched->socket.native_handle(), F_SETFD, FD_CLOEXEC);
    if (!where.ip.empty()) watched->socket.set_option(tcp::no_delay(true), failed);
    failed = co_await watched->connect(endpoint, deadline);
    if (failed) {
      watched->close();
      co_return connect_error(where, failed);
    }
    co_return std::make_unique<socket_stream>(watched);
  }

 private:
  std::size_t receive_buffer_bytes_;
  name_lookups names_;
};

}  // namespace

awaitable<byte_stream::moved> read_some(byte_stream& from, std::span<std::byte> into,
                                        time_source& time, time_point deadline) {
  for (;;) {
    if (time.now() > deadline) co_return byte_stream::moved{0, asio::error::timed_out};
    const byte_stream::moved got = from.try_read(into);
    if (got.failed != asio::error::would_block) co_return got;
    if (const auto failed = co_await from.wait(byte_stream::direction::read, deadline)) {
      co_return byte_stream::moved{0, failed};
    }
  }
}

awaitable<error_code> write_all(byte_stream& to, std::span<const std::byte> data,
                                time_point deadline) {
  while (!data.empty()) {
    const byte_stream::moved put = to.try_write(data);
    if (put.failed && put.failed != asio::error::would_block) co_return put.failed;
    data = data.subspan(put.bytes);
    if (put.failed) {
      if (const auto failed = co_await to.wait(byte_stream::direction::write, deadline)) {
        co_return failed;
      }
    }
  }
  co_return error_code();
}

std::shared_ptr<network> real_network(std::size_t receive_buffer_bytes) {
  return std::make_shared<asio_network>(receive_buffer_bytes);
}

}  // namespace millrace
