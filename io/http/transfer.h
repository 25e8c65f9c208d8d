#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "engine/base/result.h"
#include "engine/coroutines/time_source.h"
#include "engine/memory/bytes.h"
#include "io/http/message.h"
#include "io/http/object.h"
#include "io/http/object_version.h"
#include "io/http/retry_policy.h"
#include "io/names/url.h"

namespace millrace {

// Fetches one range of an object, over as many requests as it takes: the sans-io algorithm. Every
// byte is delivered exactly once, and bytes of two versions of the object never mix.
//
//   while (true) {
//     send a GET of target() with request_fields(); read the head
//     switch (on_head(head)) ...   // take the body, follow a redirect, pause, or fail
//     call on_body(n) for every piece: returns how many bytes at its front to drop
//     at the end of the body: on_end()
//   }
//   on_failure(why) whenever a connection breaks
//
// Single-threaded; no I/O.
class http_transfer {
 public:
  struct take_body {};
  struct ask_again {  // after a pause; the target may have changed
    std::chrono::milliseconds pause{0};
    bool is_retry = false;    // the server or the network failed, and little was gained before
    bool from_begin = false;  // drop what has arrived so far
    std::optional<error> why = std::nullopt;  // of the failure
  };
  struct finished {};
  using action = std::variant<take_body, ask_again, finished, error>;

  // `known`: what other parts of the same object have shown. `time` outlives the transfer.
  http_transfer(const http_object& object, byte_range range, object_version known,
                const http_options& options, time_source& time, std::uint64_t jitter_seed);

  const url& target() const { return target_; }
  // False after a redirect to another scheme, host or port: do not send secrets there.
  bool may_send_secrets() const;
  // True after a redirect to another host: do not connect to private addresses.
  bool public_only() const;
  // Range and If-Range.
  http_fields request_fields() const;

  action on_head(const response_head& head);
  // `n` body bytes arrived: returns how many of them, from the front, to drop.
  std::uint64_t on_body(std::uint64_t n);
  // Takes the next bytes of a body, before on_body(): a store's error page that came with status
  // 200 is requested again. Examines the object's first front_bytes.
  std::optional<action> on_front(std::string_view piece);
  // True while the bytes received so far may still be such a page: do not give out any of them.
  bool holds_front() const { return !front_.empty(); }
  static constexpr std::size_t front_bytes = 512;
  // Replaces these for a body that was read in one piece: what to do if it is such a page.
  std::optional<action> on_whole_body(std::string_view body);
  // The body ended as announced, or no end was announced.
  action on_end();
  // The connection failed or ended early; `why` is the reason.
  action on_failure(const error& why);
  // Bytes have left the transfer's owner: from now on it cannot start again from the beginning.
  void gave_out() { gave_out_ = true; }
  bool has_given_out() const { return gave_out_; }
  // Whether its connection may end here, for requests that wait for one: another request can bring
  // the rest at the same cost.
  bool may_be_set_aside() const;
  // The connection has ended for that reason: does not count as an attempt.
  action on_set_aside();
  // The request failed on a kept-alive connection that the server had closed: does not count as an
  // attempt.
  action on_stale_connection() { return ask_again{}; }

  // `why` with the object's URL and the next byte, if it has none.
  error described(error why) const;

  std::uint64_t offset() const { return offset_; }  // of the next byte to deliver
  // The position after the last byte; the object's end if the server sent all of it unasked.
  std::optional<std::uint64_t> end() const { return end_ ? end_ : version_.total; }
  const object_version& version() const { return version_; }
  bool ignores_ranges() const { return ignores_ranges_; }
  // The bytes before the next one to deliver that this answer repeats.
  std::uint64_t to_discard() const { return to_discard_; }
  // The requested end is not known to be the object's.
  bool may_end_within() const { return end_ && version_.total.value_or(~std::uint64_t{0}) > *end_; }
  // No end was requested, or the server ignored it: all following bytes come with this answer.
  bool brings_the_rest() const { return !end_; }
  // A part arrived, at least its head, and no later request can prove that it gets the same
  // version.
  bool stands_alone() const {
    return is_bound_ && end_ && !ignores_ranges_ && !version_.can_be_compared();
  }

 private:
  action on_partial(const response_head& head);
  action on_whole(const response_head& head);
  action on_redirect(const response_head& head);
  std::optional<error> refused_redirect(const url& next) const;
  // An answer that is not of the object as it was before. A passing failure of a proxy or store
  // looks the same, so the object counts as changed only once all attempts agree.
  action differs(std::string what);
  action retry(const error& why, const std::optional<std::string>& retry_after = std::nullopt);
  action ask_on();
  bool goes_on_unidentified() const;
  action ask_plainly();
  bool ended_early() const;
  std::optional<action> judged_front(bool is_all);
  std::optional<action> judged_passing(std::string_view piece);
  action on_page(std::string_view page);
  error changed(std::string what) const;
  action give_up(const error& why, const retry_policy::no_more& decided) const;
  bool must_begin_anew() const;
  void begin_anew(object_version of);
  void go_back();
  // Forgets an answer that brought nothing and on which nothing depends: the next one may be of
  // another version.
  void forget_unbound();
  action on_refused_range(const response_head& head);

  std::string name_;  // for messages; empty: the target
  std::string trusted_hosts_;
  url origin_;
  url target_;
  std::uint64_t begin_;
  std::uint64_t offset_;
  std::optional<std::uint64_t> end_;
  std::optional<std::uint64_t> asked_end_;
  object_version known_;  // before this transfer
  object_version version_;
  object_version before_front_;  // without claims of an answer of 200 that may be such a page
  bool is_known_;                // a server has answered for the object
  bool was_known_;               // before this transfer
  // The head of a part has arrived. The following parts are then requested as of the same object,
  // before this one has brought a byte.
  bool is_bound_ = false;
  bool private_redirects_;
  retry_policy retries_;
  std::uint64_t to_discard_ = 0;  // body bytes before the next one
  std::string front_;             // of the object, while it may be an error page
  std::string passed_;            // the start of the object, when an answer repeats it
  // The end of a part of an object whose length the server does not state.
  std::optional<std::uint64_t> part_end_;
  bool ignores_ranges_ = false;
  bool gave_out_ = false;
  bool origin_is_private_;
  int redirects_ = 0;
  bool asks_plainly_ = false;  // without a range: accepts whatever arrives
};

}  // namespace millrace
