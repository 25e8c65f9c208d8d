#include "io/http/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <ctime>

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds longest_pause{30'000};
constexpr std::chrono::seconds longest_retry_after{60};
// A request that brought so much has not failed as far as the retry budget is concerned.
constexpr std::uint64_t worthwhile = 65'536;

struct content_range {
  std::uint64_t first;
  std::uint64_t last;
  std::optional<std::uint64_t> total;
};

bool parse_number(std::string_view& text, std::uint64_t& number) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// "bytes 100-199/1000" or "bytes 100-199/*".
std::optional<content_range> parse_content_range(std::string_view text) {
  content_range r{};
  if (!skip(text, "bytes ") || !parse_number(text, r.first) || !skip(text, "-") ||
      !parse_number(text, r.last) || !skip(text, "/") || r.last < r.first) {
    return std::nullopt;
  }
  if (text == "*") return r;
  std::uint64_t total = 0;
  if (!parse_number(text, total) || !text.empty() || r.last >= total) return std::nullopt;
  r.total = total;
  return r;
}

bool is_strong(const std::optional<std::string>& etag) {
  return etag && !etag->starts_with("W/");
}

bool is_transient(int status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 ||
         status == 503 || status == 504;
}

error status_error(int status) {
  const std::string what = fmt::format("the server answered {}", status);
  switch (status) {
    case 404:
    case 410:
      return error(errc::not_found, what).skippable().hint("check the URL");
    case 401:
    case 403:
      return error(errc::not_allowed, what).skippable().hint("check the credentials");
    default:
      return error(errc::http_status, what).skippable();
  }
}

}  // namespace

std::optional<std::chrono::seconds> parse_retry_after(std::string_view text, std::int64_t now) {
  std::uint64_t seconds = 0;
  std::string_view rest = text;
  if (parse_number(rest, seconds) && rest.empty()) {
    return std::chrono::seconds(std::min<std::uint64_t>(seconds, 86400));
  }
  std::tm date{};
  const char* end = strptime(std::string(text).c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
  if (end == nullptr) return std::nullopt;
  return std::chrono::seconds(std::max<std::int64_t>(timegm(&date) - now, 0));
}

std::optional<std::uint64_t> total_in(const response_head& head) {
  const auto text = head.field("content-range");
  const auto range = text ? parse_content_range(*text) : std::nullopt;
  return range ? range->total : std::nullopt;
}

bool is_private_host(std::string_view host) {
  if (host == "localhost" || host.ends_with(".localhost") || host == "metadata.google.internal") {
    return true;
  }
  boost::system::error_code not_an_address;
  auto ip = boost::asio::ip::make_address(std::string(host), not_an_address);
  if (not_an_address) return false;
  if (ip.is_v6() && ip.to_v6().is_v4_mapped()) {
    ip = boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, ip.to_v6());
  }
  if (ip.is_loopback() || ip.is_unspecified()) return true;
  if (ip.is_v6()) {
    constexpr std::string_view aws_metadata = "fd00:ec2::254";
    return ip.to_v6().is_link_local() || ip.to_string() == aws_metadata;
  }
  return (ip.to_v4().to_uint() >> 16) == 0xa9fe;  // 169.254.0.0/16
}

http_transfer::http_transfer(url target, byte_range range, object_version known,
                             const transfer_options& options, time_source& time,
                             std::uint64_t jitter_seed)
    : origin_(target),
      target_(std::move(target)),
      begin_(range.begin),
      offset_(range.begin),
      end_(range.end),
      version_(std::move(known)),
      is_known_(version_.total || version_.etag || version_.last_modified),
      was_known_(is_known_),
      options_(options),
      time_(time),
      jitter_(jitter_seed, purpose::retry) {}

bool http_transfer::may_send_secrets() const {
  const std::string& trusted = options_.trusted_hosts;
  const bool no_worse = target_.scheme == "https" || origin_.scheme == "http";
  if (!trusted.empty() && no_worse && (trusted == "*" || target_.host.ends_with(trusted))) {
    return true;
  }
  return target_.scheme == origin_.scheme && target_.host == origin_.host &&
         target_.port_or_default() == origin_.port_or_default();
}

http_fields http_transfer::request_fields() const {
  if (offset_ == 0 && !end_) return {};
  http_fields fields;
  fields.push_back({"Range", end_ ? fmt::format("bytes={}-{}", offset_, *end_ - 1)
                                  : fmt::format("bytes={}-", offset_)});
  // A weak ETag must not be used here (RFC 9110, 13.1.5).
  if (is_strong(version_.etag)) {
    fields.push_back({"If-Range", *version_.etag});
  } else if (version_.last_modified) {
    fields.push_back({"If-Range", *version_.last_modified});
  }
  return fields;
}

bool http_transfer::can_resume() const {
  return options_.verified || is_strong(version_.etag) || version_.last_modified;
}

bool http_transfer::same_version(const response_head& head) const {
  const auto etag = head.field("etag");
  if (version_.etag && etag) return *version_.etag == *etag;
  const auto modified = head.field("last-modified");
  if (version_.last_modified && modified) return *version_.last_modified == *modified;
  return true;  // nothing to compare; lengths are compared as well
}

void http_transfer::remember_version(const response_head& head) {
  if (auto etag = head.field("etag")) version_.etag = std::move(etag);
  if (auto modified = head.field("last-modified")) version_.last_modified = std::move(modified);
}

error http_transfer::described(error why) const {
  if (why.where().empty()) why.at(options_.name.empty() ? to_string(origin_) : options_.name);
  if (!why.byte_offset()) why.offset(offset_);
  return why;
}

error http_transfer::changed(std::string what) const {
  return described(
      error(errc::changed, std::move(what)).skippable().hint("do not overwrite shards in use"));
}

http_transfer::action http_transfer::retry(const error& why,
                                           const std::optional<std::string>& retry_after) {
  if (offset_ > begin_ && !can_resume()) {
    return described(error(why.kind(), why.what() +
                                           ", and it cannot be resumed: the server gives neither a "
                                           "strong ETag nor a Last-Modified to know the object by")
                         .skippable()
                         .hint("give the shards a Last-Modified, or a digest by an index"));
  }
  ++attempts_;
  if (attempts_ >= options_.attempts) {
    error last = error(why.kind(), fmt::format("{} (attempt {} of {})", why.what(), attempts_,
                                               options_.attempts))
                     .skippable()
                     .hint(
                         "check the server and the network; MILLRACE_HTTP_ATTEMPTS sets how "
                         "often it is asked");
    return described(std::move(last));
  }
  // Full jitter: uniform between nothing and the exponential bound.
  const auto doubled = options_.first_pause * (1 << std::min(attempts_ - 1, 16));
  const auto bound = std::min<milliseconds>(doubled, longest_pause);
  milliseconds pause(
      static_cast<long long>(static_cast<double>(bound.count()) * jitter_.uniform()));
  // A connection that did its work for a while may be replaced at once.
  if (attempts_ == 1 && gained_ > 0) pause = milliseconds(0);
  const bool is_retry = std::exchange(gained_, 0) < worthwhile;
  if (retry_after) {
    if (const auto asked = parse_retry_after(*retry_after, time_.unix_seconds())) {
      pause = std::max<milliseconds>(pause, std::min(*asked, longest_retry_after));
    }
  }
  // Behind a redirect, the place that was redirected to may be what fails.
  target_ = origin_;
  redirects_ = 0;
  return ask_again{pause, is_retry};
}

http_transfer::action http_transfer::on_failure(const error& why) {
  if (!why.is_retryable()) return described(error(why).skippable());
  return retry(why);
}

std::optional<error> http_transfer::refused_redirect(const url& next) const {
  const auto refused = [](std::string what) { return error(errc::protocol, std::move(what)); };
  if (next.scheme != "http" && next.scheme != "https") {
    return refused(fmt::format("a redirect to '{}:' is not followed", next.scheme));
  }
  if (target_.scheme == "https" && next.scheme == "http") {
    return refused("a redirect from https to http is not followed");
  }
  const bool private_already = is_private_host(origin_.host) || !origin_.socket.empty();
  if (is_private_host(next.host) && !private_already && !options_.private_redirects) {
    return refused(fmt::format("a redirect to the private address {} is not followed", next.host))
        .hint("MILLRACE_HTTP_PRIVATE_REDIRECTS=on follows it");
  }
  return std::nullopt;
}

http_transfer::action http_transfer::on_redirect(const response_head& head) {
  const auto location = head.field("location");
  if (!location) {
    error lost(errc::protocol, "a redirect without a Location");
    if (const auto region = head.field("x-amz-bucket-region")) {
      lost.hint(fmt::format("the bucket is in {}: set AWS_REGION", *region));
    }
    return described(lost.skippable());
  }
  if (++redirects_ > options_.redirects) {
    return described(
        error(errc::protocol, fmt::format("more than {} redirects", options_.redirects))
            .skippable()
            .hint("use the URL that the object is at"));
  }
  auto next = resolve_url(target_, *location);
  if (!next) return described(error(next.error()).skippable());
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
        error(errc::protocol,
              fmt::format("asked for bytes {}-{}, the server sent '{}'", offset_,
                          end_ ? std::to_string(*end_ - 1) : "",
                          text.value_or(head.field("content-type").value_or("no Content-Range"))))
            .skippable()
            .hint("the server's ranges are broken; MILLRACE_HTTP_SPLIT=off asks for fewer"));
  }
  if (!same_version(head) || (version_.total && got->total && *version_.total != *got->total)) {
    return changed("the object changed while it was read");
  }
  is_known_ = true;
  if (got->total) version_.total = got->total;
  if (end_ && version_.total && *end_ > *version_.total) end_ = version_.total;
  remember_version(head);
  return take_body{};
}

http_transfer::action http_transfer::on_whole(const response_head& head) {
  const bool asked_for_range = offset_ > 0 || end_;
  const auto& known = version_.total;
  const bool other_length = known && head.content_length && *known != *head.content_length;
  const bool is_bound = offset_ > 0 || was_known_;
  if (is_bound && (!same_version(head) || other_length)) {
    return changed("the object changed while it was read");
  }
  // The server does not do ranges: what we have already is sent again, and left out; and so is all
  // that follows, which is taken where nobody else was asked for it yet.
  if (!is_known_) end_.reset();
  is_known_ = true;
  ignores_ranges_ = asked_for_range;
  if (head.content_length) version_.total = head.content_length;
  if (known && *known < offset_)
    return changed(fmt::format("the object has only {} bytes", *known));
  remember_version(head);
  to_discard_ = offset_;
  return take_body{};
}

http_transfer::action http_transfer::on_head(const response_head& head) {
  to_discard_ = 0;
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
      return changed("the object changed while it was read");
    case 416: {
      // Nothing behind `offset`: the end, where the total is known to be there.
      const auto range = head.field("content-range");
      const bool at_end = range == fmt::format("bytes */{}", offset_);
      const bool empty = offset_ == 0 && (!range || range == "bytes */0");
      if (!at_end && !empty) return changed("the object is shorter than when it was first read");
      version_.total = offset_;
      return finished{};
    }
    default:
      return described(status_error(head.status));
  }
  const auto encoding = head.field("content-encoding");
  if (encoding && *encoding != "identity" && !encoding->empty()) {
    return described(error(errc::protocol, fmt::format("the server sent Content-Encoding '{}' "
                                                       "although identity was asked for",
                                                       *encoding))
                         .skippable()
                         .hint("turn compression off for .tar on the server"));
  }
  return head.status == 206 ? on_partial(head) : on_whole(head);
}

std::uint64_t http_transfer::on_body(std::uint64_t n) {
  const std::uint64_t unwanted = std::min(n, to_discard_);
  to_discard_ -= unwanted;
  if (n > unwanted) {
    offset_ += n - unwanted;
    gained_ += n - unwanted;
    attempts_ = 0;
  }
  return unwanted;
}

std::optional<http_transfer::action> http_transfer::on_first_bytes(std::string_view first) {
  // S3 and its kin begin an answer of 200 before they know that they will fail.
  const bool is_xml = first.starts_with("<?xml") || first.starts_with("<Error>");
  if (!is_xml || first.substr(0, 512).find("<Error>") == std::string_view::npos) {
    return std::nullopt;
  }
  const auto from = first.find("<Code>");
  const auto to = first.find("</Code>");
  const std::string code(to != std::string_view::npos && from < to
                             ? first.substr(from + 6, std::min<std::size_t>(to - from - 6, 60))
                             : "no code");
  offset_ = 0;
  if (begin_ == 0) version_ = {};
  return retry(error(errc::http_status,
                     fmt::format("the store answered 200 with an error in the body: {}", code)));
}

http_transfer::action http_transfer::on_end() {
  const auto wanted = end();
  if (wanted && offset_ < *wanted) {
    return retry(error(errc::cut, fmt::format("the transfer was cut, {} of {} bytes are missing",
                                              *wanted - offset_, *wanted)));
  }
  if (to_discard_ > 0) return changed("the object is shorter than before");
  if (!version_.total) version_.total = offset_;
  return finished{};
}

}  // namespace millrace
