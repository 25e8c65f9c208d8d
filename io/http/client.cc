#include "io/http/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cstring>

#include "engine/coroutines/async.h"
#include "engine/coroutines/shared_call.h"
#include "engine/threads/blocking.h"
#include "io/hashes.h"
#include "io/http/dialer.h"
#include "io/http/options.h"
#include "io/http/pool.h"
#include "io/http/proxy.h"
#include "io/http/response_reader.h"
#include "io/http/tls.h"
#include "io/http/transport.h"

namespace millrace {
namespace {

using lease = connection_pool::lease;

constexpr std::size_t head_read_bytes = 16UL * 1024;
// While a server takes no bytes of a request, its answer is looked for this often.
constexpr std::chrono::milliseconds heard_after{250};
// Reads from a server that is faster than this thread yield to other coroutines after this many
// bytes.
constexpr std::size_t turn_bytes = 256UL * 1024;
// The start of a TLS server's answer to anything else: an alert, version 3.x (RFC 8446, 5.1).
constexpr std::string_view tls_record = "\x15\x03";

error translated(error_code why, std::string_view doing) {
  if (why == asio::error::timed_out) {
    return error(errc::timed_out, fmt::format("{}: the server sent nothing in time", doing))
        .retryable();
  }
  if (why == asio::error::operation_aborted) return error(errc::stopped, "stopped");
  const bool ended = why == asio::error::eof || why == asio::error::connection_reset ||
                     why == asio::error::broken_pipe;
  if (ended) {
    return error(errc::cut, fmt::format("{}: the server ended the connection", doing)).retryable();
  }
  return error(errc::io_failed, fmt::format("{}: {}", doing, why.message())).retryable();
}

// The Host field, and the target of CONNECT.
std::string authority(const url& target, bool always_port) {
  std::string host =
      target.host.find(':') == std::string::npos ? target.host : "[" + target.host + "]";
  if (always_port || !target.port.empty()) return host + ":" + target.port_or_default();
  return host;
}

// Whether the text has no control bytes; if `is_visible`, also no spaces and no bytes beyond ASCII.
bool is_clean(std::string_view text, bool is_visible = false) {
  return std::ranges::all_of(text, [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return is_visible ? byte > 0x20 && byte < 0x7f : byte >= 0x20 && byte != 0x7f;
  });
}

// A request as it is sent. Requests are written only here, so that no text from elsewhere can begin
// another line or another request (RFC 9112, 3 and 5): fails with usage.
result<std::string> request_text(std::string_view method, std::string_view target,
                                 const http_fields& fields) {
  if (!is_clean(method, true) || !is_clean(target, true) || target.empty()) {
    return error(errc::usage, "the URL contains an invalid byte")
        .hint("write %20 for a space, %XX for other bytes, and punycode for a host");
  }
  std::string text = fmt::format("{} {} HTTP/1.1\r\n", method, target);
  for (const auto& [name, value] : fields) {
    const bool is_name = is_field_name(name);
    // The host is a part of the URL.
    if (!is_name || !is_clean(value, name == "Host")) {
      return error(errc::usage, fmt::format("the header field '{}' contains an invalid byte",
                                            is_name ? name : "?"));
    }
    text.append(name).append(": ").append(value).append("\r\n");
  }
  return text + "\r\n";
}

// The longest request that gets no byte of a body.
steady_clock::duration longest_request(const http_timeouts& limits) {
  return limits.connect + limits.tls + limits.first_byte + limits.progress;
}

std::optional<http_field> proxy_authorization(const url& proxy) {
  if (proxy.userinfo.empty()) return std::nullopt;
  return http_field{"Proxy-Authorization", "Basic " + base64(percent_decoded(proxy.userinfo))};
}

http_timeouts limits_of(http_timeouts limits, bool slow_answer) {
  if (slow_answer) limits.first_byte = limits.progress = slow_answer_wait * limits.first_byte;
  return limits;
}

class exchange final : public http_exchange {
 public:
  exchange(lease l, time_source& time, const http_timeouts& limits, const http_request& what)
      : lease_(std::move(l)),
        time_(time),
        limits_(limits_of(limits, what.slow_answer)),
        reader_(what.method == "HEAD"),
        is_slow_(what.slow_answer),
        progress_left_(limits_.progress) {
    if (is_slow_) ends_ = time_.now() + slow_answer_whole * limits.first_byte;
  }

  // Sends the request, whose head is `text`, and reads the head of the answer.
  awaitable<result<void>> begin(std::string_view text, std::string_view body) {
    const auto begun = time_.now();
    byte_stream* const stream = lease_.connection.stream.get();
    auto unsent =
        co_await write_all(*stream, std::as_bytes(std::span(text)), begun + limits_.first_byte);
    if (!unsent) unsent = co_await send_body(body);
    // A server may answer, and end the connection, before it has read the whole request.
    if (unsent && unsent != asio::error::broken_pipe && unsent != asio::error::connection_reset) {
      co_return translated(unsent, "sending the request");
    }
    is_cut_ = is_cut_ || unsent;
    const auto deadline = time_.now() + limits_.first_byte;
    for (parse_head(); !reader_.has_head() && !broken_; parse_head()) {
      std::string more(head_read_bytes, '\0');
      const auto got =
          co_await read_some(*stream, std::as_writable_bytes(std::span(more)), time_, deadline);
      if (got.failed) co_return translated(got.failed, "waiting for the answer");
      took(std::string_view(more).substr(0, got.bytes));
    }
    if (broken_) co_return *broken_;
    time_to_head_ = time_.now() - begun;
    reader_.head().from_private = lease_.connection.is_private;
    co_return result<void>();
  }
  bool any_byte() const { return any_byte_; }

  void pause(condition* wake) override { lease_.pause(wake); }
  void resume() override { lease_.resume(); }
  bool is_wanted() const override { return lease_.is_wanted(); }

  const response_head& head() const override { return reader_.head(); }
  steady_clock::duration time_to_head() const override { return time_to_head_; }

  awaitable<result<std::size_t>> read_body(std::span<std::byte> into) override {
    const auto begun = time_.now();
    for (;;) {
      std::string& pending = lease_.connection.pending;
      auto taken = reader_.take_body(pending, into);
      if (pending.empty() && pending.capacity() > 0)
        pending = {};  // not needed to find the body's length
      if (!taken) co_return taken.error();
      if (*taken > 0) co_return *taken;
      if (reader_.is_done()) {
        keep_connection();
        co_return std::size_t{0};
      }
      // Bytes that need no parsing go directly to their destination.
      const std::size_t direct = reader_.direct_bytes(into.size());
      std::span<std::byte> place = into.first(direct);
      if (direct == 0) {
        scratch_.resize(64UL * 1024);
        place = std::as_writable_bytes(std::span(scratch_));
      }
      const auto got = co_await read_some(*lease_.connection.stream, place, time_,
                                          std::min(begun + progress_left_, ends_));
      if (got.failed == asio::error::eof && reader_.put_end()) continue;
      if (got.failed) co_return translated(got.failed, "reading the body");
      lease_.moved();
      count_progress(got.bytes, time_.now() - begun);
      turn_ += got.bytes;
      if (turn_ >= turn_bytes) {
        turn_ = 0;
        co_await asio::post(co_await this_executor, no_throw);
      }
      if (direct == 0) {
        lease_.connection.pending.append(scratch_, 0, got.bytes);
        continue;
      }
      reader_.took_directly(got.bytes);
      co_return got.bytes;
    }
  }

 private:
  // A long body may take its time, as long as it moves. Its rest is not sent once the server has
  // refused the request: it may neither read that nor end the connection.
  awaitable<error_code> send_body(std::string_view body) {
    while (!body.empty() && !is_cut_) {
      const auto piece = body.substr(0, progress_bytes);
      if (const auto unsent = co_await send_piece(piece)) co_return unsent;
      body.remove_prefix(piece.size());
      lease_.moved();
    }
    co_return error_code();
  }

  awaitable<error_code> send_piece(std::string_view piece) {
    byte_stream* const stream = lease_.connection.stream.get();
    const auto deadline = time_.now() + limits_.progress;
    while (!piece.empty()) {
      // Before the write, which sets what the stream waits for.
      is_cut_ = hears_refusal();
      if (is_cut_) break;
      const byte_stream::moved put = stream->try_write(std::as_bytes(std::span(piece)));
      piece.remove_prefix(put.bytes);
      if (!put.failed) continue;
      if (put.failed != asio::error::would_block) co_return put.failed;
      const auto failed = co_await stream->wait(byte_stream::direction::write,
                                                std::min(deadline, time_.now() + heard_after));
      const bool is_over = failed != asio::error::timed_out || time_.now() >= deadline;
      if (failed && is_over) co_return failed;
    }
    co_return error_code();
  }

  // Whether the server has answered before it has the whole request, and not with success.
  bool hears_refusal() {
    if (reader_.has_head()) return false;
    std::array<char, 4096> bytes;
    const auto got = lease_.connection.stream->try_read(std::as_writable_bytes(std::span(bytes)));
    if (got.bytes == 0) return false;  // a connection that has ended takes no more bytes either
    took({bytes.data(), got.bytes});
    parse_head();
    return broken_ || (reader_.has_head() && reader_.head().status / 100 != 2);
  }

  void took(std::string_view bytes) {
    any_byte_ = true;
    lease_.moved();
    lease_.connection.pending += bytes;
  }

  void parse_head() {
    std::string& pending = lease_.connection.pending;
    if (reader_.has_head() || broken_) return;
    if (pending.starts_with(tls_record)) {
      broken_ = error(errc::protocol, "this port speaks TLS").hint("write https:// for http://");
      return;
    }
    auto used = reader_.put_head(pending);
    if (used) {
      pending.erase(0, *used);
    } else {
      broken_ = used.error();
    }
  }

  // Time counts against the limit only during reads, so that a slow consumer is not taken for a
  // stalled server.
  void count_progress(std::size_t got, steady_clock::duration took) {
    progressed_ += got;
    if (progressed_ >= progress_bytes || is_slow_) {
      progressed_ = 0;
      progress_left_ = limits_.progress;
    } else {
      progress_left_ -= std::min<steady_clock::duration>(took, progress_left_);
    }
  }

  void keep_connection() {
    if (lease_.connection.stream && !is_cut_ && reader_.may_be_reused() &&
        lease_.connection.pending.empty()) {
      lease_.give_back();
    }
  }

  lease lease_;
  time_source& time_;
  http_timeouts limits_;
  response_reader reader_;
  std::string scratch_;
  std::size_t turn_ = 0;  // bytes since other coroutines ran
  bool any_byte_ = false;
  bool is_cut_ = false;          // the request, whose rest is not sent
  std::optional<error> broken_;  // of the head of the answer
  bool is_slow_;
  time_source::time_point ends_ = time_source::time_point::max();
  steady_clock::duration time_to_head_{};
  steady_clock::duration progress_left_;
  std::uint64_t progressed_ = 0;
};

class pooled_client final : public http_client {
 public:
  pooled_client(const http_options& options, std::shared_ptr<network> over, time_source& time)
      : options_(options),
        proxies_(proxies_of(options)),
        time_(time),
        dialer_(std::move(over), time),
        pool_(std::make_shared<connection_pool>(time, options_.connections, options_.idle,
                                                2 * longest_request(options_.timeouts))) {}

  awaitable<result<outcome>> send(scope& tasks, http_request what) override {
    auto proxy = proxy_for(what.target, proxies_);
    if (!proxy) co_return proxy.error();
    auto text = written(what, *proxy);
    if (!text) co_return text.error();
    // The address of a kept connection is unknown.
    const bool public_only = what.public_only && !*proxy;
    const std::string key = (*proxy ? (*proxy)->origin() + "|" : "") +
                            (*proxy && what.target.scheme == "http" ? "" : what.target.origin()) +
                            (public_only ? "|public" : "");
    auto place = co_await pool_->acquire(key, what.priority, what.fresh_connection);
    if (!place) co_return described(place.error(), what.target);
    lease l = std::move(*place);
    const bool reused = l.connection.stream != nullptr;
    if (!reused) {
      auto made = co_await connect_in_time(tasks, what.target, *proxy, public_only);
      if (!made) co_return described(made.error(), what.target);
      l.connection = {std::move(made->stream), {}, made->is_private && !*proxy};
    }
    auto begun = std::make_unique<exchange>(std::move(l), time_, options_.timeouts, what);
    const auto sent = co_await begun->begin(*text, what.body);
    outcome out;
    if (!sent) {
      out.stale_connection = reused && !begun->any_byte() && sent.error().kind() == errc::cut;
      if (out.stale_connection) co_return out;
      co_return described(sent.error(), what.target);
    }
    out.exchange = std::move(begun);
    co_return out;
  }

 private:
  static error described(error why, const url& target) {
    if (why.where().empty()) why.at(to_string(target));
    return why;
  }

  // The head of the request.
  result<std::string> written(const http_request& what, const std::optional<url>& proxy) const {
    const url& target = what.target;
    const bool by_proxy = proxy && target.scheme == "http";
    http_fields fields{{"Host", authority(target, false)},
                       {"User-Agent", options_.user_agent},
                       {"Accept-Encoding", "identity"}};
    fields.insert(fields.end(), what.fields.begin(), what.fields.end());
    if (const auto secret = by_proxy ? proxy_authorization(*proxy) : std::nullopt) {
      fields.push_back(*secret);
    }
    if (!what.body.empty() || what.method == "PUT" || what.method == "POST") {
      fields.push_back({"Content-Length", std::to_string(what.body.size())});
    }
    auto text = request_text(
        what.method, (by_proxy ? "http://" + authority(target, false) : "") + target.path, fields);
    if (!text) return described(text.error(), target);
    return *text;
  }

  // Made for the first connection that needs it, for which the others wait: reading the host's
  // certificates takes 20 ms of a CPU.
  awaitable<result<tls_context*>> tls() {
    if (!tls_) {
      auto made = co_await making_tls_(
          [this] { return blocking([this] { return make_tls_context(options_.tls); }); });
      if (!made) co_return made.error();
      if (!tls_) tls_ = std::move(*made);
    }
    co_return tls_.get();
  }

  // If descriptors are short, other connections end first.
  awaitable<result<dialer::dialed>> connect_in_time(scope& tasks, url target,
                                                    std::optional<url> proxy, bool public_only) {
    const auto deadline = time_.now() + options_.timeouts.connect;
    for (;;) {
      auto made = co_await connect(tasks, target, proxy, public_only);
      if (made || made.error().kind() != errc::no_descriptors) co_return made;
      if (time_.now() >= deadline) {
        co_return error(made.error())
            .retryable()
            .hint(
                "raise `ulimit -n`, or lower http_options.connections (MILLRACE_HTTP_CONNECTIONS)");
      }
      if (!pool_->drop_idle()) co_await pool_->until_one_may_be_free(deadline);
    }
  }

  awaitable<result<dialer::dialed>> connect(scope& tasks, url target, std::optional<url> proxy,
                                            bool public_only) {
    const url first = proxy ? *proxy : target;
    const auto deadline = time_.now() + options_.timeouts.connect;
    auto made = target.socket.empty()
                    ? co_await dialer_.dial(tasks, first.host, first.port_or_default(), public_only,
                                            deadline)
                    : co_await dialer_.dial_unix(target.socket, deadline);
    if (made && proxy && proxy->scheme == "https") {
      made = co_await encrypted(std::move(*made), *proxy);
    }
    if (!made && proxy) co_return of_proxy(made.error(), target);
    if (!made || target.scheme != "https") co_return made;
    if (proxy) {
      const auto open = co_await tunnel(*made->stream, target, *proxy);
      if (!open) co_return open.error();
    }
    co_return co_await encrypted(std::move(*made), target);
  }

  // The error of an attempt to reach the proxy.
  error of_proxy(const error& why, const url& target) const {
    if (why.kind() == errc::stopped || why.kind() == errc::no_descriptors) return why;
    const bool is_https = target.scheme == "https";
    const auto& own = is_https ? proxies_.https_proxy : proxies_.http_proxy;
    const std::string variable = own.empty() ? "all_proxy" : target.scheme + "_proxy";
    return error(why.kind(),
                 fmt::format("the proxy ({}) cannot be reached: {}", variable, why.what()))
        .retryable(why.is_retryable())
        .skippable(why.is_skippable())
        .hint(why.what_to_do());
  }

  awaitable<result<dialer::dialed>> encrypted(dialer::dialed below, url peer) {
    const auto context = co_await tls();
    if (!context) co_return context.error();
    auto stream = co_await (*context)->handshake(std::move(below.stream), peer.host, peer.origin(),
                                                 time_.now() + options_.timeouts.tls);
    if (!stream) co_return stream.error();
    co_return dialer::dialed{std::move(*stream), below.is_private};
  }

  // Asks the proxy for a tunnel to the target.
  awaitable<result<void>> tunnel(byte_stream& stream, url target, url proxy) {
    const auto deadline = time_.now() + options_.timeouts.connect;
    const std::string to = authority(target, true);
    http_fields fields{{"Host", to}, {"User-Agent", options_.user_agent}};
    if (auto secret = proxy_authorization(proxy)) fields.push_back(std::move(*secret));
    const auto text = request_text("CONNECT", to, fields);
    if (!text) co_return text.error();
    auto failed = co_await write_all(stream, std::as_bytes(std::span(*text)), deadline);
    response_reader reader(true);
    std::string pending;
    while (!failed && !reader.has_head()) {
      // Reads not a byte beyond the head: what follows is the target's.
      std::byte next{};
      const auto got = co_await read_some(stream, {&next, 1}, time_, deadline);
      failed = got.failed;
      if (failed) break;
      pending += static_cast<char>(next);
      if (!pending.ends_with("\r\n\r\n") && pending.size() < head_read_bytes) continue;
      const auto used = reader.put_head(pending);
      if (!used) co_return used.error();
      pending.erase(0, *used);
      if (pending.size() >= head_read_bytes) {
        co_return error(errc::protocol, "the proxy's answer to CONNECT is not HTTP/1.1")
            .retryable();
      }
    }
    if (failed) co_return translated(failed, "waiting for the proxy");
    const int status = reader.head().status;
    if (status / 100 == 2) co_return result<void>();
    const bool refused = status == 407 || status == 403 || status == 401;
    co_return error(refused ? errc::not_allowed : errc::connect_failed,
                    fmt::format("the proxy {} answered {} to CONNECT", proxy.host, status))
        .retryable(!refused)
        .hint(refused ? "put user:password@ into the proxy's URL" : "");
  }

  const http_options options_;
  const proxy_settings proxies_;
  time_source& time_;
  dialer dialer_;
  std::shared_ptr<connection_pool> pool_;
  std::shared_ptr<tls_context> tls_;
  shared_call<std::shared_ptr<tls_context>> making_tls_;
};

}  // namespace

std::shared_ptr<http_client> make_http_client(const http_options& options,
                                              std::shared_ptr<network> over, time_source& time) {
  return std::make_shared<pooled_client>(options, std::move(over), time);
}

awaitable<std::optional<error>> read_whole_body(http_exchange& from, std::size_t most_bytes,
                                                std::string& into) {
  std::string piece(64UL << 10, '\0');
  for (;;) {
    const auto got = co_await from.read_body(std::as_writable_bytes(std::span(piece)));
    if (!got) co_return got.error();
    if (*got == 0) co_return std::nullopt;
    into.append(piece, 0, *got);
    if (into.size() > most_bytes) {
      co_return error(errc::too_large, "the answer is larger than expected");
    }
  }
}

}  // namespace millrace
