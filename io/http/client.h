#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/coroutines/awaitable.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "engine/host/clock.h"
#include "io/http/message.h"
#include "io/http/transport.h"
#include "io/names/url.h"

namespace millrace {

struct http_options;

struct http_request {
  url target;
  std::string method = "GET";
  http_fields fields;  // in addition to Host, User-Agent and Accept-Encoding
  std::string body;
  int priority = 0;               // if connections are scarce: lowest first
  bool fresh_connection = false;  // not one that was kept alive
  bool public_only = false;       // not to an address of is_private_address()
  // The server works long before it answers, or between the bytes of its answer: each byte counts
  // as progress, and slow_answer_wait bounds the wait for it.
  bool slow_answer = false;
};

// One response being read. One I/O thread, one call at a time. When this ends, its connection is
// kept if it can be reused.
class http_exchange {
 public:
  virtual ~http_exchange() = default;
  virtual const response_head& head() const = 0;
  // Reads as many bytes of the body as are available, directly into `into`; 0 at its end. Fails
  // with cut, timed_out or protocol.
  virtual awaitable<result<std::size_t>> read_body(std::span<std::byte> into) = 0;
  // The time from the request's first byte to the head's last.
  virtual steady_clock::duration time_to_head() const = 0;

  // Call these around any wait of the reader other than read_body() (paused_exchange): other
  // requests may be in line for its connection. `wake` is notified when is_wanted() may have become
  // true. Null: this exchange cannot be given up, and meanwhile its connection does not count
  // against http_options::connections.
  virtual void pause(condition* /*wake*/) {}
  virtual void resume() {}
  // Paused, and other requests wait for its connection: destroy the exchange, and request the rest
  // later.
  virtual bool is_wanted() const { return false; }
};

// Appends the rest of a body of at most `most_bytes` to `into`; returns the error, if any:
// too_large for a longer one. `from` and `into` outlive the call.
awaitable<std::optional<error>> read_whole_body(http_exchange& from, std::size_t most_bytes,
                                                std::string& into);

// Pauses the exchange while this exists; does nothing if it is null.
class paused_exchange {
 public:
  paused_exchange(http_exchange* of, condition* wake) : of_(of) {
    if (of_ != nullptr) of_->pause(wake);
  }
  ~paused_exchange() {
    if (of_ != nullptr) of_->resume();
  }
  paused_exchange(const paused_exchange&) = delete;
  paused_exchange& operator=(const paused_exchange&) = delete;

  bool is_wanted() const { return of_ != nullptr && of_->is_wanted(); }

 private:
  http_exchange* of_;
};

// HTTP/1.1 requests on kept-alive connections, direct or by a proxy, plain or with TLS. The
// interface is the seam for tests without connections; the network below it is another seam, for
// simulated connections. One I/O thread.
class http_client {
 public:
  struct outcome {
    std::unique_ptr<http_exchange> exchange;
    bool stale_connection = false;  // the kept-alive connection was dead: retry on a fresh one
  };

  virtual ~http_client() = default;
  // Sends a request and reads the head of the answer. Connection attempts run in `tasks`.
  virtual awaitable<result<outcome>> send(scope& tasks, http_request what) = 0;
};

// Copies the options; `time` outlives the client.
std::shared_ptr<http_client> make_http_client(const http_options& options,
                                              std::shared_ptr<network> over, time_source& time);

}  // namespace millrace
