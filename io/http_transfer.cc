#include "io/http_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds longest_pause{30'000};
constexpr std::chrono::seconds longest_retry_after{60};

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

http_transfer::http_transfer(url target, std::uint64_t offset, const transfer_options& options,
                             std::uint64_t jitter_seed)
    : origin_(target),
      target_(std::move(target)),
      offset_(offset),
      options_(options),
      jitter_(jitter_seed, purpose::retry) {}

std::optional<std::string> http_transfer::range() const {
  if (offset_ == 0) return std::nullopt;
  return fmt::format("bytes={}-", offset_);
}

std::optional<std::string> http_transfer::if_range() const {
  if (offset_ == 0) return std::nullopt;
  // A weak ETag must not be used here (RFC 9110, 13.1.5).
  if (is_strong(etag_)) return etag_;
  return last_modified_;
}

bool http_transfer::same_version(const response_head& head) const {
  if (etag_ && head.etag) return *etag_ == *head.etag;
  if (last_modified_ && head.last_modified) return *last_modified_ == *head.last_modified;
  return true;  // nothing to compare; lengths are compared as well
}

void http_transfer::remember_version(const response_head& head) {
  if (head.etag) etag_ = head.etag;
  if (head.last_modified) last_modified_ = head.last_modified;
}

error http_transfer::described(error why) const {
  if (why.where().empty()) why.at(to_string(origin_));
  if (!why.byte_offset()) why.offset(offset_);
  return why;
}

http_transfer::action http_transfer::retry(const error& why,
                                           const std::optional<std::string>& retry_after) {
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
  if (retry_after) {
    if (const auto asked = parse_retry_after(*retry_after, std::time(nullptr))) {
      pause = std::max<milliseconds>(pause, std::min(*asked, longest_retry_after));
    }
  }
  return ask_again{pause};
}

http_transfer::action http_transfer::on_failure(const error& why) {
  return retry(why);
}

http_transfer::action http_transfer::on_redirect(const response_head& head) {
  if (!head.location) {
    return described(error(errc::protocol, "a redirect without a Location").skippable());
  }
  if (++redirects_ > options_.redirects) {
    return described(
        error(errc::protocol, fmt::format("more than {} redirects", options_.redirects))
            .skippable());
  }
  auto next = resolve_url(target_, *head.location);
  if (!next) return described(next.error());
  if (next->scheme != "http" && next->scheme != "https") {
    return described(
        error(errc::protocol, fmt::format("a redirect to '{}:' is not followed", next->scheme))
            .skippable());
  }
  if (next->scheme == "https") {
    return described(
        error(errc::unsupported, "redirected to https, which this build cannot read").skippable());
  }
  target_ = std::move(*next);
  return ask_again{};
}

http_transfer::action http_transfer::on_partial(const response_head& head) {
  const auto got = head.content_range ? parse_content_range(*head.content_range) : std::nullopt;
  if (!got || got->first != offset_) {
    return described(
        error(errc::protocol, fmt::format("asked for bytes from {}, the server sent '{}'", offset_,
                                          head.content_range.value_or("no Content-Range")))
            .skippable());
  }
  if (!same_version(head) || (total_ && got->total && *total_ != *got->total)) {
    return described(error(errc::changed, "the object changed while it was read")
                         .skippable()
                         .hint("do not overwrite shards in use"));
  }
  if (got->total) total_ = got->total;
  remember_version(head);
  return take_body{};
}

http_transfer::action http_transfer::on_whole(const response_head& head) {
  const bool has_bytes = etag_ || last_modified_ || total_;
  if (has_bytes && offset_ > 0 &&
      (!same_version(head) || (total_ && head.content_length && *total_ != *head.content_length))) {
    return described(error(errc::changed, "the object changed while it was read")
                         .skippable()
                         .hint("do not overwrite shards in use"));
  }
  if (head.content_length) total_ = head.content_length;
  if (total_ && *total_ < offset_) {
    return described(
        error(errc::changed, fmt::format("the object has only {} bytes", *total_)).skippable());
  }
  remember_version(head);
  // The server does not do ranges: what we have already is sent again, and left out.
  to_discard_ = offset_;
  return take_body{};
}

http_transfer::action http_transfer::on_head(const response_head& head) {
  to_discard_ = 0;
  if (is_transient(head.status)) {
    return retry(error(errc::http_status, fmt::format("the server answered {}", head.status)),
                 head.retry_after);
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
    case 416:
      // Nothing behind `offset`: the end, where the total is known to be there.
      if (head.content_range == fmt::format("bytes */{}", offset_)) return finished{};
      return described(
          error(errc::changed, "the object is shorter than when it was first read").skippable());
    default:
      return described(status_error(head.status));
  }
  if (head.content_encoding && *head.content_encoding != "identity") {
    return described(error(errc::protocol, fmt::format("the server sent Content-Encoding '{}' "
                                                       "although identity was asked for",
                                                       *head.content_encoding))
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
    attempts_ = 0;
  }
  return unwanted;
}

http_transfer::action http_transfer::on_end() {
  if (total_ && offset_ < *total_) {
    return retry(error(errc::cut, fmt::format("the transfer was cut, {} of {} bytes are missing",
                                              *total_ - offset_, *total_)));
  }
  if (to_discard_ > 0) {
    return described(error(errc::changed, "the object is shorter than before").skippable());
  }
  return finished{};
}

}  // namespace millrace
