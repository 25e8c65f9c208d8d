#include "io/http/transfer.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/hints.h"
#include "io/http/header_values.h"
#include "io/http/options.h"
#include "io/http/private_host.h"
#include "io/http/refusals.h"

namespace millrace {
namespace {

constexpr int most_redirects = 5;

// Whether both are the same server, as far as secrets are concerned.
bool is_same_place(const url& a, const url& b) {
  return a.scheme == b.scheme && a.socket == b.socket && a.host == b.host &&
         a.port_or_default() == b.port_or_default();
}

}  // namespace

http_transfer::http_transfer(const http_object& object, byte_range range, object_version known,
                             const http_options& options, time_source& time,
                             std::uint64_t jitter_seed)
    : name_(object.name),
      trusted_hosts_(object.trusted_hosts),
      origin_(object.target),
      target_(object.target),
      begin_(range.begin),
      offset_(range.begin),
      end_(range.end),
      asked_end_(range.end),
      known_(std::move(known)),
      version_(known_),
      is_known_(version_.total || version_.is_known()),
      was_known_(is_known_),
      private_redirects_(options.private_redirects),
      retries_(options, time, jitter_seed),
      origin_is_private_(is_private_host(origin_.host) || !origin_.socket.empty()) {}

bool http_transfer::may_send_secrets() const {
  const bool no_worse = target_.scheme == "https" || origin_.scheme == "http";
  if (!trusted_hosts_.empty() && no_worse && target_.socket.empty() &&
      (trusted_hosts_ == "*" || target_.host.ends_with(trusted_hosts_))) {
    return true;
  }
  return is_same_place(target_, origin_);
}

http_fields http_transfer::request_fields() const {
  if (offset_ == 0 && (!end_ || asks_plainly_)) return {};
  http_fields fields;
  fields.push_back({"Range", end_ ? fmt::format("bytes={}-{}", offset_, *end_ - 1)
                                  : fmt::format("bytes={}-", offset_)});
  if (auto name = version_.name_to_ask_by()) fields.push_back({"If-Range", std::move(*name)});
  return fields;
}

bool http_transfer::must_begin_anew() const {
  return offset_ > begin_ && (!version_.can_be_asked_for() || holds_front());
}

bool http_transfer::public_only() const {
  return target_.host != origin_.host && !origin_is_private_ && !private_redirects_;
}

error http_transfer::described(error why) const {
  if (why.where().empty()) why.at(name_.empty() ? to_string(origin_) : name_);
  const bool is_file = why.where().starts_with('/');  // certificates or secrets
  if (!why.byte_offset() && !is_file) why.offset(offset_);
  return why;
}

error http_transfer::changed(std::string what) const {
  return described(error(errc::changed, std::move(what)).skippable().hint(new_names_hint));
}

http_transfer::action http_transfer::differs(std::string what) {
  if (must_begin_anew() && gave_out_) return changed(std::move(what));
  if (offset_ == begin_) begin_anew(version_);
  return retry(error(errc::changed, std::move(what)));
}

http_transfer::action http_transfer::retry(const error& why,
                                           const std::optional<std::string>& retry_after) {
  const bool from_begin = must_begin_anew();
  if (from_begin && gave_out_) {
    return described(error(why.kind(), why.what() +
                                           ", and it cannot be resumed: the server gives neither a "
                                           "strong ETag nor a Last-Modified to identify the object")
                         .skippable()
                         .hint("have the server send an ETag or a Last-Modified"));
  }
  const auto decided = retries_.on_failure(from_begin, retry_after);
  if (const auto* no_more = std::get_if<retry_policy::no_more>(&decided)) {
    return give_up(why, *no_more);
  }
  if (from_begin) {
    // Other parts of the object may rely on its known version.
    was_known_ = was_known_ || version_.is_known();
    const bool forgets = !is_bound_ && !version_.can_be_compared();
    begin_anew(holds_front() ? before_front_ : forgets ? known_ : version_);
    front_.clear();
  }
  forget_unbound();
  go_back();  // after a redirect, its destination may be what fails
  const auto [pause, is_retry] = std::get<retry_policy::again>(decided);
  return ask_again{pause, is_retry, from_begin, why};
}

http_transfer::action http_transfer::give_up(const error& why,
                                             const retry_policy::no_more& decided) const {
  std::string what = fmt::format("{} ({})", why.what(), decided.why);
  if (why.kind() == errc::changed) return changed(std::move(what));
  return described(error(why.kind(), std::move(what))
                       .skippable()
                       .hint(why.kind() == errc::no_descriptors
                                 ? "raise `ulimit -n`, or lower http_options.connections "
                                   "(MILLRACE_HTTP_CONNECTIONS)"
                                 : no_more_attempts_hint));
}

void http_transfer::begin_anew(object_version of) {
  version_ = std::move(of);
  offset_ = begin_;
  end_ = asked_end_;
  if (end_ && version_.total && *version_.total > begin_) end_ = std::min(*end_, *version_.total);
  is_known_ = was_known_ || is_bound_;
  ignores_ranges_ = false;
  part_end_.reset();
}

// The destination of a redirect may be valid for one use only.
void http_transfer::go_back() {
  target_ = origin_;
  redirects_ = 0;
}

void http_transfer::forget_unbound() {
  if (offset_ == begin_ && !was_known_ && !is_bound_) begin_anew(known_);
}

bool http_transfer::may_be_set_aside() const {
  return !ignores_ranges_ && !holds_front() && (offset_ == begin_ || version_.can_be_asked_for());
}

http_transfer::action http_transfer::on_set_aside() {
  go_back();
  forget_unbound();
  return ask_again{};
}

http_transfer::action http_transfer::on_failure(const error& why) {
  if (!why.is_retryable()) return described(error(why).skippable());
  return retry(why);
}

std::optional<error> http_transfer::refused_redirect(const url& next) const {
  const auto refused = [](std::string what) { return error(errc::protocol, std::move(what)); };
  if (!is_web(next)) {
    return refused(fmt::format("a redirect to '{}:' is not followed", next.scheme));
  }
  if (target_.scheme == "https" && next.scheme == "http") {
    return refused("a redirect from https to http is not followed");
  }
  // A unix socket of this host is for the user to name, not for a server to redirect to.
  if (!next.socket.empty() && next.socket != target_.socket) {
    return refused("a redirect to a unix socket is not followed");
  }
  // Other names are judged by their addresses when they are connected to: public_only().
  const bool is_other = next.host != origin_.host;
  if (is_other && is_private_host(next.host) && !origin_is_private_ && !private_redirects_) {
    return refused(fmt::format("a redirect to the private address {} is not followed", next.host))
        .hint("http_options.private_redirects (MILLRACE_HTTP_PRIVATE_REDIRECTS=on) follows it");
  }
  return std::nullopt;
}

http_transfer::action http_transfer::on_redirect(const response_head& head) {
  const auto location = head.field("location");
  if (!location) {
    error lost(errc::protocol, "a redirect without a Location");
    if (const auto region = told_region(head.field("x-amz-bucket-region").value_or(""))) {
      lost.hint(fmt::format("the bucket is in {}: set AWS_REGION", *region));
    }
    return described(lost.skippable());
  }
  if (++redirects_ > most_redirects) {
    return described(error(errc::protocol, fmt::format("more than {} redirects", most_redirects))
                         .skippable()
                         .hint("use the URL that the object is at"));
  }
  auto next = resolve_url(target_, *location);
  if (!next) {  // the server's mistake, not the user's
    const std::string what = "the server redirects to an invalid URL: " + next.error().what();
    return described(error(errc::protocol, what).skippable().hint("check the server"));
  }
  if (auto refused = refused_redirect(*next)) return described(refused->skippable());
  target_ = std::move(*next);
  return ask_again{};
}

http_transfer::action http_transfer::on_partial(const response_head& head) {
  const auto text = head.field("content-range");
  const auto got = text ? parse_content_range(*text) : std::nullopt;
  const bool fits = got && got->first == offset_ && (!end_ || got->last < *end_) &&
                    (!head.content_length || *head.content_length == got->last - got->first + 1);
  if (!fits) {
    return described(
        error(errc::protocol, fmt::format("asked for bytes {}-{}, the server sent '{}'", offset_,
                                          end_ ? std::to_string(*end_ - 1) : "", told_range(head)))
            .skippable()
            .hint("the server's ranges are broken; http_options.split = 1 "
                  "(MILLRACE_HTTP_SPLIT=off) asks for fewer"));
  }
  if (!version_.fits(head) || (version_.total && got->total && *version_.total != *got->total)) {
    return differs("the object changed while it was read");
  }
  if (goes_on_unidentified()) return ask_plainly();
  // A HEAD may have stated a different length.
  if (version_.total && !got->total && got->last >= *version_.total) {
    return differs(
        fmt::format("it has more bytes than the {} that were announced", *version_.total));
  }
  is_known_ = true;
  part_end_.reset();
  if (!got->total && !version_.total) part_end_ = got->last + 1;
  if (got->total) version_.total = got->total;
  if (end_ && version_.total && *end_ > *version_.total) end_ = version_.total;
  version_.learn(head);
  is_bound_ = true;
  before_front_ = version_;
  return take_body{};
}

http_transfer::action http_transfer::on_whole(const response_head& head) {
  const bool asked_for_range = offset_ > 0 || end_;
  const auto& known = version_.total;
  const bool other_length = known && head.content_length && *known != *head.content_length;
  if (!version_.fits(head) || other_length) return differs("the object changed while it was read");
  if (goes_on_unidentified()) return ask_plainly();
  // Without a validator, it could only be identified by its length.
  if (known && !head.content_length && !version_.is_known()) {
    return differs(fmt::format("{} bytes were announced, and the answer has no length", *known));
  }
  const auto all = head.content_length ? head.content_length : known;
  if (all && *all < offset_) {
    return differs(fmt::format("the object has only {} bytes", *all));
  }
  // The server does not do ranges: bytes that have already arrived are sent again and dropped. It
  // also sends everything that follows; that is used if no other part was requested for it yet.
  before_front_ = version_;
  if (!is_known_) end_.reset();
  is_known_ = true;
  ignores_ranges_ = asked_for_range;
  part_end_.reset();
  if (head.content_length) version_.total = head.content_length;
  if (end_ && all) end_ = std::min(*end_, *all);
  version_.learn(head);
  if ((offset_ > 0 || asks_plainly_) && all == offset_) return finished{};
  to_discard_ = offset_;
  return take_body{};
}

// Status 416.
http_transfer::action http_transfer::on_refused_range(const response_head& head) {
  // A part that was requested before the length was known: the object ends before it.
  if (const auto all = length_told(head);
      all && *all < begin_ && offset_ == begin_ && !version_.total && version_.may_fit(head)) {
    version_.total = all;
    return finished{};
  }
  // Nothing from `offset` on: the object's end, if the server says that it is there.
  if (length_told(head) == offset_ && version_.may_fit(head)) {
    if (version_.total.value_or(offset_) != offset_) {
      return differs("the object is shorter than when it was first read");
    }
    version_.total = offset_;
    return finished{};
  }
  if (part_end_ && !head.field("content-range")) {
    return described(
        error(errc::protocol, "the server answered 416, and never states where the object ends")
            .skippable()
            .hint("have the server send Content-Range: bytes */LENGTH"));
  }
  if (offset_ > 0) return differs("the object is shorter than when it was first read");
  // For an empty object, S3 says no more than that.
  if (end_ && !head.field("content-range") && !std::exchange(asks_plainly_, true)) {
    go_back();
    return ask_again{};
  }
  return described(error(errc::protocol,
                         "the server answered 416 to the first byte, and "
                         "does not say that the object is empty")
                       .skippable()
                       .hint("check the server"));
}

http_transfer::action http_transfer::on_head(const response_head& head) {
  to_discard_ = 0;
  passed_.clear();
  if (head.from_private && target_.host == origin_.host) origin_is_private_ = true;
  if (is_transient(head.status)) {
    return retry(error(errc::http_status, fmt::format("the server answered {}", head.status)),
                 head.field("retry-after"));
  }
  switch (head.status) {
    case 301:
    case 302:
    case 303:
    case 307:
    case 308:
      return on_redirect(head);
    case 200:
    case 206:
      break;
    case 412:
      return differs("the object changed while it was read");
    case 416:
      return on_refused_range(head);
    default:
      return described(status_error(head.status, origin_, name_));
  }
  if (const auto encoding = unwanted_encoding(head)) {
    return described(
        error(errc::protocol,
              fmt::format("the server sent {} although identity was asked for", *encoding))
            .skippable()
            .hint("turn compression off for .tar on the server"));
  }
  return head.status == 206 ? on_partial(head) : on_whole(head);
}

std::uint64_t http_transfer::on_body(std::uint64_t n) {
  const std::uint64_t unwanted = std::min(n, to_discard_);
  to_discard_ -= unwanted;
  // From here on other parts may know that this answer brings the rest, and do not request it.
  if (!end_ && !holds_front()) asked_end_.reset();
  if (n > unwanted) {
    offset_ += n - unwanted;
    if (holds_front()) return unwanted;  // an error page gains nothing
    retries_.gained(n - unwanted);
  }
  return unwanted;
}

std::optional<http_transfer::action> http_transfer::on_front(std::string_view piece) {
  if (to_discard_ > 0) return judged_passing(piece);
  if (offset_ >= front_bytes || front_.size() != offset_) return std::nullopt;
  front_ += piece.substr(0, front_bytes - front_.size());
  return judged_front(false);
}

std::optional<http_transfer::action> http_transfer::on_whole_body(std::string_view body) {
  auto page = on_front(body);
  return page ? page : judged_front(true);
}

// `is_all`: nothing follows.
std::optional<http_transfer::action> http_transfer::judged_front(bool is_all) {
  const bool may_be = may_be_error_page(front_);
  const bool is_page = is_error_page(front_);
  const bool is_complete = is_all || front_.size() == front_bytes;
  const auto to = front_.find("</Code>");
  if (may_be && !is_complete && !(is_page && to != std::string::npos)) return std::nullopt;
  const std::string front = std::exchange(front_, {});
  if (!is_page) return std::nullopt;
  begin_anew(before_front_);
  return on_page(front);
}

// For an answer that begins before the wanted bytes.
std::optional<http_transfer::action> http_transfer::judged_passing(std::string_view piece) {
  if (passed_.size() >= front_bytes) return std::nullopt;
  passed_ += piece.substr(0, front_bytes - passed_.size());
  if (!is_error_page(passed_)) return std::nullopt;
  if (offset_ == begin_) begin_anew(before_front_);
  return on_page(passed_);
}

http_transfer::action http_transfer::on_page(std::string_view page) {
  const std::string code = error_code_in(page);
  auto next = retry(
      error(errc::http_status, fmt::format("the store answered 200 with an error in the body: {}",
                                           code.empty() ? "no code" : code)));
  // No byte of the page itself may be kept.
  if (auto* again = std::get_if<ask_again>(&next)) again->from_begin = true;
  return next;
}

// A server may send less than was requested; only a request beyond the end shows where it is.
http_transfer::action http_transfer::ask_on() {
  go_back();
  const auto decided = retries_.on_end();
  const auto* no_more = std::get_if<retry_policy::no_more>(&decided);
  if (no_more == nullptr) return ask_again{};
  return give_up(error(errc::cut, "the server sends next to nothing at a time"), *no_more);
}

// The bytes after a part of unknown length are known to be of the same version only if there is a
// version to compare.
bool http_transfer::goes_on_unidentified() const {
  return part_end_ && offset_ > begin_ && !version_.can_be_compared();
}

// Starts again as if nothing had been requested before.
http_transfer::action http_transfer::ask_plainly() {
  if (gave_out_ || begin_ > 0 || std::exchange(asks_plainly_, true)) {
    return described(unidentified_part());
  }
  is_bound_ = false;
  begin_anew(known_);
  go_back();
  return ask_again{.from_begin = true};
}

// The whole of an object of unknown length arrived, and it is shorter than the requested end.
bool http_transfer::ended_early() const {
  return ignores_ranges_ && !version_.total && offset_ - to_discard_ < end_.value_or(0);
}

http_transfer::action http_transfer::on_end() {
  if (holds_front()) {
    if (auto page = judged_front(true)) return *page;
  }
  if (ended_early() && (to_discard_ == 0 || offset_ == begin_)) {
    version_.total = offset_ - to_discard_;
    return finished{};
  }
  const auto wanted = part_end_ ? part_end_ : end();
  if (wanted && offset_ < *wanted) {
    return retry(error(errc::cut, fmt::format("the transfer was cut, {} of {} bytes are missing",
                                              *wanted - offset_, *wanted)));
  }
  if (to_discard_ > 0) return differs("the object is shorter than before");
  if (part_end_ && (!end_ || offset_ < *end_)) return ask_on();
  return finished{};  // its actual end: nothing stated it, so nothing is compared
}

}  // namespace millrace
