// The one translation unit that includes Beast.
#include "io/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/src.hpp>
#include <cstring>
#include <map>
#include <vector>

#include "engine/timer.h"

namespace millrace {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::uint32_t head_limit = 64 * 1024;
constexpr std::size_t kept_alive_per_origin = 16;
constexpr const char* user_agent = "millrace/0.1";

struct connection {
  explicit connection(const asio::any_io_executor& executor) : stream(executor) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;  // what was read beyond the last head
};

using connection_ptr = std::unique_ptr<connection>;

error translated(error_code why, std::string_view doing) {
  if (why == beast::error::timeout) {
    return error(errc::timed_out, fmt::format("{}: the server gave nothing in time", doing))
        .retryable();
  }
  if (why == asio::error::operation_aborted) return error(errc::stopped, "stopped");
  const bool ended = why == asio::error::eof || why == http::error::end_of_stream ||
                     why == http::error::partial_message || why == asio::error::connection_reset ||
                     why == asio::error::broken_pipe;
  if (ended) {
    return error(errc::cut, fmt::format("{}: the server ended the connection", doing)).retryable();
  }
  if (why.category() == http::make_error_code(http::error::end_of_stream).category()) {
    return error(errc::protocol, fmt::format("{}: {}", doing, why.message())).retryable();
  }
  return error(errc::io_failed, fmt::format("{}: {}", doing, why.message())).retryable();
}

error connect_error(const url& target, error_code why) {
  return error(errc::connect_failed, fmt::format("cannot connect to {}:{} ({})", target.host,
                                                 target.port_or_default(), why.message()))
      .at(to_string(target))
      .retryable();
}

awaitable<result<tcp::resolver::results_type>> resolve(url target) {
  tcp::resolver resolver(co_await asio::this_coro::executor);
  const auto [failed, found] =
      co_await resolver.async_resolve(target.host, target.port_or_default(), no_throw);
  if (failed) co_return connect_error(target, failed);
  co_return found;
}

awaitable<result<connection_ptr>> connect(url target, std::chrono::milliseconds limit) {
  const auto too_slow = error(errc::timed_out, fmt::format("no connection to {}:{} in time",
                                                           target.host, target.port_or_default()))
                            .at(to_string(target))
                            .retryable();
  auto addresses = co_await with_deadline(resolve(target), limit, too_slow);
  if (!addresses) co_return addresses.error();
  auto made = std::make_unique<connection>(co_await asio::this_coro::executor);
  made->stream.expires_after(limit);
  const auto [failed, where] = co_await made->stream.async_connect(*addresses, no_throw);
  if (failed == beast::error::timeout) co_return too_slow;
  if (failed) co_return connect_error(target, failed);
  error_code ignored;
  made->stream.socket().set_option(tcp::no_delay(true), ignored);
  co_return made;
}

struct idle_connections {
  std::map<std::string, std::vector<connection_ptr>> by_origin;

  connection_ptr take(const std::string& origin) {
    auto& idle = by_origin[origin];
    if (idle.empty()) return nullptr;
    auto last = std::move(idle.back());
    idle.pop_back();
    return last;
  }
  void keep(const std::string& origin, connection_ptr c) {
    auto& idle = by_origin[origin];
    if (idle.size() < kept_alive_per_origin) idle.push_back(std::move(c));
  }
};

using response_parser = http::response_parser<http::buffer_body>;

std::optional<std::string> field(const response_parser& parser, http::field name) {
  const auto it = parser.get().find(name);
  if (it == parser.get().end()) return std::nullopt;
  return std::string(it->value());
}

response_head head_of(const response_parser& parser) {
  response_head head;
  head.status = static_cast<int>(parser.get().result_int());
  if (const auto length = parser.content_length()) head.content_length = *length;
  head.content_range = field(parser, http::field::content_range);
  head.etag = field(parser, http::field::etag);
  head.last_modified = field(parser, http::field::last_modified);
  head.location = field(parser, http::field::location);
  head.retry_after = field(parser, http::field::retry_after);
  head.content_encoding = field(parser, http::field::content_encoding);
  return head;
}

class beast_exchange final : public http_exchange {
 public:
  beast_exchange(connection_ptr c, std::shared_ptr<idle_connections> idle, std::string origin,
                 http_timeouts limits)
      : connection_(std::move(c)),
        idle_(std::move(idle)),
        origin_(std::move(origin)),
        limits_(limits),
        progress_left_(limits.progress) {
    parser_.body_limit(boost::none);
    parser_.header_limit(head_limit);
  }

  // The head; `stale` when a kept-alive connection turned out to be dead before any answer.
  awaitable<error_code> send(http::request<http::empty_body> request) {
    auto& stream = connection_->stream;
    stream.expires_after(limits_.first_byte);
    const auto [write_failed, written] = co_await http::async_write(stream, request, no_throw);
    if (write_failed) co_return write_failed;
    const auto [read_failed, got] =
        co_await http::async_read_header(stream, connection_->buffer, parser_, no_throw);
    if (read_failed) co_return read_failed;
    head_ = head_of(parser_);
    // A body of known length is read past the parser, in pieces as large as the caller's buffer.
    if (!parser_.chunked() && parser_.content_length()) left_ = *parser_.content_length();
    co_return error_code();
  }

  const response_head& head() const override { return head_; }

  awaitable<result<std::size_t>> read_body(std::span<std::byte> into) override {
    if (ended_ || (left_ && *left_ == 0)) {
      keep_connection();
      co_return std::size_t{0};
    }
    const auto started = steady_clock::now();
    connection_->stream.expires_after(progress_left_);
    auto got = left_ ? co_await read_plain(into) : co_await read_parsed(into);
    if (!got) co_return got;
    count_progress(*got, steady_clock::now() - started);
    co_return got;
  }

 private:
  awaitable<result<std::size_t>> read_plain(std::span<std::byte> into) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), *left_));
    auto& buffered = connection_->buffer;
    std::size_t got = std::min(buffered.size(), wanted);
    if (got > 0) {
      std::memcpy(into.data(), buffered.data().data(), got);
      buffered.consume(got);
    } else {
      const auto [failed, n] =
          co_await connection_->stream.async_read_some(asio::buffer(into.data(), wanted), no_throw);
      if (failed) co_return translated(failed, "reading the body");
      got = n;
    }
    *left_ -= got;
    co_return got;
  }

  // Chunked bodies, and those that end with the connection.
  awaitable<result<std::size_t>> read_parsed(std::span<std::byte> into) {
    auto& body = parser_.get().body();
    body.data = into.data();
    body.size = into.size();
    body.more = true;
    while (!parser_.is_done() && body.size == into.size()) {
      const auto [failed, n] = co_await http::async_read_some(
          connection_->stream, connection_->buffer, parser_, no_throw);
      if (failed && failed != http::error::need_buffer) {
        co_return translated(failed, "reading the body");
      }
    }
    ended_ = parser_.is_done();
    const std::size_t got = into.size() - body.size;
    if (ended_ && got == 0) keep_connection();
    co_return got;
  }

  // Time counts against the limit only while we read, so a slow consumer is not taken for a stalled
  // server.
  void count_progress(std::size_t got, steady_clock::duration took) {
    progressed_ += got;
    if (progressed_ >= progress_bytes) {
      progressed_ = 0;
      progress_left_ = limits_.progress;
    } else {
      progress_left_ -= std::min<steady_clock::duration>(took, progress_left_);
    }
  }

  void keep_connection() {
    if (!connection_ || !parser_.keep_alive() || parser_.need_eof()) return;
    connection_->stream.expires_never();
    idle_->keep(origin_, std::move(connection_));
  }

  connection_ptr connection_;
  std::shared_ptr<idle_connections> idle_;
  std::string origin_;
  http_timeouts limits_;
  response_parser parser_;
  response_head head_;
  std::optional<std::uint64_t> left_;
  bool ended_ = false;
  steady_clock::duration progress_left_;
  std::uint64_t progressed_ = 0;
};

http::request<http::empty_body> make_request(const http_client::request& what) {
  http::request<http::empty_body> made(http::verb::get, what.target.path, 11);
  std::string host = what.target.origin();
  made.set(http::field::host, host.substr(host.find("://") + 3));
  made.set(http::field::user_agent, user_agent);
  made.set(http::field::accept_encoding, "identity");
  if (what.range) made.set(http::field::range, *what.range);
  if (what.if_range) made.set(http::field::if_range, *what.if_range);
  return made;
}

class beast_client final : public http_client {
 public:
  awaitable<result<outcome>> get(request what, http_timeouts limits) override {
    const std::string origin = what.target.origin();
    connection_ptr c = what.fresh_connection ? nullptr : idle_->take(origin);
    const bool reused = c != nullptr;
    if (!reused) {
      auto made = co_await connect(what.target, limits.connect);
      if (!made) co_return made.error();
      c = std::move(*made);
    }
    auto exchange = std::make_unique<beast_exchange>(std::move(c), idle_, origin, limits);
    const error_code failed = co_await exchange->send(make_request(what));
    outcome out;
    if (failed && reused && failed != beast::error::timeout) {
      out.stale_connection = true;
      co_return out;
    }
    if (failed) co_return translated(failed, "waiting for the answer").at(to_string(what.target));
    out.exchange = std::move(exchange);
    co_return out;
  }

 private:
  std::shared_ptr<idle_connections> idle_ = std::make_shared<idle_connections>();
};

}  // namespace

std::shared_ptr<http_client> make_http_client() {
  return std::make_shared<beast_client>();
}

}  // namespace millrace
