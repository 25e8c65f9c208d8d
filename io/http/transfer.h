#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/bytes.h"
#include "engine/random.h"
#include "engine/result.h"
#include "engine/time_source.h"
#include "io/http/message.h"
#include "io/url.h"

namespace millrace {

struct transfer_options {
  int attempts = 6;  // in a row without a byte gained
  std::chrono::milliseconds first_pause{500};
  int redirects = 5;
  bool private_redirects = false;  // follow redirects to loopback and link-local addresses
  std::string name;                // in messages; empty: the target
  std::string trusted_hosts;       // hosts of this ending, or "*", may be shown what is secret
  bool verified = false;           // a digest of the whole will show whether versions were mixed
};

// What tells one version of an object from another, as far as the server says.
struct object_version {
  std::optional<std::uint64_t> total;
  std::optional<std::string> etag;
  std::optional<std::string> last_modified;
};

// One range of an object being fetched over as many requests as it takes: the sans-io algorithm, in
// which every byte is delivered exactly once and bytes of two versions of the object never mix.
//
//   while (true) {
//     send a GET of target() with request_fields(); read the head
//     switch (on_head(head)) ...   // take the body, follow a redirect, pause, or fail
//     feed on_body(n) for every piece; it answers how many bytes in front to leave out
//     at the end of the body: on_end()
//   }
//   on_failure(why) wherever a connection breaks
//
// Single-threaded; no I/O.
class http_transfer {
 public:
  struct take_body {};
  struct ask_again {  // after a pause; the target may have changed
    std::chrono::milliseconds pause{0};
    bool is_retry = false;  // the server or the network failed, and little was gained before
  };
  struct finished {};
  using action = std::variant<take_body, ask_again, finished, error>;

  // `known`: what parts of the same object have shown. `time` outlives the transfer.
  http_transfer(url target, byte_range range, object_version known, const transfer_options& options,
                time_source& time, std::uint64_t jitter_seed);

  const url& target() const { return target_; }
  // False behind a redirect to another scheme, host or port: what is secret stays at home.
  bool may_send_secrets() const;
  // Range and If-Range.
  http_fields request_fields() const;

  action on_head(const response_head& head);
  // `n` body bytes came: how many of them, from the front, are not wanted.
  std::uint64_t on_body(std::uint64_t n);
  // The first bytes of the object: a store's error page that came with status 200 is asked for
  // again.
  std::optional<action> on_first_bytes(std::string_view first);
  // The body ended as announced, or where nothing was announced.
  action on_end();
  // The connection failed or ended early; `why` says how.
  action on_failure(const error& why);
  // The request failed on a kept-alive connection that the server had closed: not an attempt.
  action on_stale_connection() { return ask_again{}; }

  std::uint64_t offset() const { return offset_; }  // of the next byte to deliver
  // Of the last byte and one; the object's end where the server gave all of it unasked.
  std::optional<std::uint64_t> end() const { return end_ ? end_ : version_.total; }
  const object_version& version() const { return version_; }
  bool ignores_ranges() const { return ignores_ranges_; }
  // No end was asked for, or the server did not heed it: all that follows comes with this.
  bool brings_the_rest() const { return !end_; }

 private:
  action on_partial(const response_head& head);
  action on_whole(const response_head& head);
  action on_redirect(const response_head& head);
  std::optional<error> refused_redirect(const url& next) const;
  action retry(const error& why, const std::optional<std::string>& retry_after = std::nullopt);
  error described(error why) const;
  error changed(std::string what) const;
  bool can_resume() const;
  bool same_version(const response_head& head) const;
  void remember_version(const response_head& head);

  url origin_;
  url target_;
  std::uint64_t begin_;
  std::uint64_t offset_;
  std::optional<std::uint64_t> end_;
  object_version version_;
  bool is_known_;   // a server has answered for the object
  bool was_known_;  // before this transfer
  transfer_options options_;
  time_source& time_;
  random_stream jitter_;
  std::uint64_t to_discard_ = 0;
  bool ignores_ranges_ = false;
  std::uint64_t gained_ = 0;  // bytes since the last failure
  int attempts_ = 0;
  int redirects_ = 0;
};

// The size of the whole object by a Content-Range; nullopt where the head has none.
std::optional<std::uint64_t> total_in(const response_head& head);

// Seconds, or an HTTP date seen from `now` (seconds since the epoch); nullopt for neither.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, std::int64_t now);

// Loopback, link-local and unspecified addresses, and the names that clouds serve secrets under.
bool is_private_host(std::string_view host);

}  // namespace millrace
