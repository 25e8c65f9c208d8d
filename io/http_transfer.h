#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/random.h"
#include "engine/result.h"
#include "io/url.h"

namespace millrace {

// What of a response's head a transfer looks at.
struct response_head {
  int status = 0;
  std::optional<std::uint64_t> content_length;
  std::optional<std::string> content_range;
  std::optional<std::string> etag;
  std::optional<std::string> last_modified;
  std::optional<std::string> location;
  std::optional<std::string> retry_after;
  std::optional<std::string> content_encoding;
};

struct transfer_options {
  int attempts = 6;  // in a row without a byte gained
  std::chrono::milliseconds first_pause{500};
  int redirects = 5;
};

// One object being fetched over as many requests as it takes: the sans-io algorithm, in which every
// byte is delivered exactly once and bytes of two versions of the object never mix.
//
//   while (true) {
//     send a GET of target() with range() and if_range(); read the head
//     switch (on_head(head)) ...   // take the body, follow a redirect, pause, or fail
//     feed on_body(n) for every piece; it answers how many bytes in front to leave out
//     at the end of the body: on_end()
//   }
//   on_failure(why) wherever a connection breaks
//
// Single-threaded; no I/O, no clock.
class http_transfer {
 public:
  struct take_body {};
  struct ask_again {  // after a pause; the target may have changed
    std::chrono::milliseconds pause{0};
  };
  struct finished {};
  using action = std::variant<take_body, ask_again, finished, error>;

  http_transfer(url target, std::uint64_t offset, const transfer_options& options,
                std::uint64_t jitter_seed);

  const url& target() const { return target_; }
  // The Range header's value; nullopt where the whole object is wanted.
  std::optional<std::string> range() const;
  // The If-Range header's value: the validator of the bytes that we already have.
  std::optional<std::string> if_range() const;

  action on_head(const response_head& head);
  // `n` body bytes came: how many of them, from the front, are not wanted.
  std::uint64_t on_body(std::uint64_t n);
  // The body ended as announced, or where nothing was announced.
  action on_end();
  // The connection failed or ended early; `why` says how.
  action on_failure(const error& why);
  // The request failed on a kept-alive connection that the server had closed: not an attempt.
  action on_stale_connection() { return ask_again{}; }

  std::uint64_t offset() const { return offset_; }  // of the next byte to deliver
  std::optional<std::uint64_t> total() const { return total_; }

 private:
  action on_partial(const response_head& head);
  action on_whole(const response_head& head);
  action on_redirect(const response_head& head);
  action retry(const error& why, const std::optional<std::string>& retry_after = std::nullopt);
  error described(error why) const;
  bool same_version(const response_head& head) const;
  void remember_version(const response_head& head);

  url origin_;
  url target_;
  std::uint64_t offset_;
  transfer_options options_;
  random_stream jitter_;
  std::optional<std::uint64_t> total_;
  std::optional<std::string> etag_;
  std::optional<std::string> last_modified_;
  std::uint64_t to_discard_ = 0;
  int attempts_ = 0;
  int redirects_ = 0;
};

// Seconds, or an HTTP date seen from `now` (seconds since the epoch); nullopt for neither.
std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, std::int64_t now);

}  // namespace millrace
