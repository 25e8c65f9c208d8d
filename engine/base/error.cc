#include "engine/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "engine/base/fingerprint.h"
#include "engine/base/printable.h"
#include "engine/base/process_wide.h"
#include "engine/base/words.h"

namespace millrace {

std::string_view kind_name(errc kind) {
  static constexpr std::array<std::string_view, 33> names{
      "usage",          "bad_setting", "not_found",       "not_allowed",
      "connect_failed", "untrusted",   "timed_out",       "cut",
      "http_status",    "protocol",    "io_failed",       "changed",
      "truncated",      "bad_archive", "duplicate_field", "too_large",
      "bad_image",      "bad_label",   "bad_field",       "missing_field",
      "no_samples",     "no_memory",   "no_descriptors",  "bad_state",
      "bad_index",      "integrity",   "peer_lost",       "too_many_skipped",
      "unsupported",    "stopped",     "uncaught",        "device_failed",
      "internal"};
  static_assert(names.size() == static_cast<std::size_t>(errc::internal) + 1);
  const auto number = static_cast<std::size_t>(kind);
  return number < names.size() ? names[number] : names.back();
}

bool is_read_failure(errc kind) {
  switch (kind) {
    case errc::not_found:
    case errc::not_allowed:
    case errc::connect_failed:
    case errc::untrusted:
    case errc::timed_out:
    case errc::cut:
    case errc::http_status:
    case errc::protocol:
    case errc::io_failed:
      return true;
    default:
      return false;
  }
}

int exit_code(errc kind) {
  switch (kind) {
    case errc::usage:
    case errc::bad_setting:
    case errc::no_memory:
    case errc::unsupported:
      return 2;
    case errc::too_many_skipped:
      return 3;
    case errc::no_descriptors:
      return 4;
    case errc::changed:
    case errc::truncated:
    case errc::bad_archive:
    case errc::duplicate_field:
    case errc::bad_field:
    case errc::bad_index:
    case errc::integrity:
      return 5;
    case errc::peer_lost:
      return 6;
    case errc::device_failed:
      return 7;
    case errc::stopped:
      return 130;
    default:
      return is_read_failure(kind) ? 4 : 1;
  }
}

namespace {

constexpr std::string_view between_urls = ",;|(){}<>\"'`: \t\r\n";

// Without the separators that follow it in a list of URLs.
std::string_view without_separators(std::string_view url) {
  return url.substr(0, url.find_last_not_of(between_urls) + 1);
}

// The length of the scheme that `text` begins with, up to its ':'; 0: it has none (RFC 3986, 3.1;
// at least two characters).
std::size_t scheme_end(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && (std::isalnum(static_cast<unsigned char>(text[n])) != 0 ||
                             std::string_view("+-.").find(text[n]) != text.npos)) {
    ++n;
  }
  const bool is_scheme = n >= 2 && n < text.size() && text[n] == ':' &&
                         std::isalpha(static_cast<unsigned char>(text[0])) != 0;
  return is_scheme ? n : 0;
}

// Whether `text` begins with `scheme`, in lower case, and ":". Scheme names are case-insensitive.
bool is_scheme_of(std::string_view scheme, std::string_view text) {
  const auto is_alike = [](char a, char b) { return lowered(a) == b; };
  return scheme_end(text) == scheme.size() &&
         std::ranges::equal(text.substr(0, scheme.size()), scheme, is_alike);
}

// The position of user, host and port; nullopt: it is a path. Accepts malformed URLs too:
// "http:/user:password@host", "//user:password@host", "http//user:password@host".
std::optional<std::size_t> authority_of(std::string_view text) {
  const auto slashes = text.find("://");
  if (slashes != std::string_view::npos) return slashes + 3;
  for (const std::string_view begin : {"//", "http//", "https//"}) {
    if (text.starts_with(begin)) return begin.size();
  }
  const auto colon = text.find(':');
  const bool is_scheme = colon != std::string_view::npos && colon >= 2 &&
                         text.substr(0, colon).find_first_of("/.@ ") == std::string_view::npos;
  if (!is_scheme || is_scheme_of("file", text)) return std::nullopt;
  return std::min(text.find_first_not_of('/', colon + 1), text.size());
}

bool is_port(std::string_view text) {
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_host_and_port(std::string_view text) {
  const auto bracket = text.rfind(']');  // of an IPv6 address
  const auto colon = text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  return colon == std::string_view::npos || is_port(text.substr(colon + 1));
}

// The end of user, host and port. A '/', '?' or '#' in a password may seem to end them early: if
// the text up to it is not "host:port", they end after the last '@'.
std::size_t authority_end_of(std::string_view url, std::size_t authority) {
  const auto end = std::min(url.find_first_of("/?#", authority), url.size());
  const auto text = url.substr(authority, end - authority);
  const auto last = url.rfind('@');
  if (text.find('@') != std::string_view::npos || last == std::string_view::npos || last < end) {
    return end;
  }
  if (!text.empty() && is_host_and_port(text)) return end;
  return std::min(url.find_first_of("/?#", last), url.size());
}

// A command may have secrets in its arguments, and in variables set before it.
std::string redacted_command(std::string_view url) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_./+").find(c) != std::string_view::npos;
  };
  const std::size_t begin = url.find(':') + 1;
  std::size_t end = begin;
  while (end < url.size() && is_plain(url[end])) ++end;
  if (end == url.size()) return std::string(url);
  return std::string(url.substr(0, url[end] == '=' ? begin : end)) + " ...";
}

// The position of a query that was percent-encoded into the key by mistake, "x.tar%3Fsig%3D...";
// the size of the URL if there is none.
std::size_t encoded_query(std::string_view url, std::size_t from) {
  for (auto at = url.find('%', from); at != url.npos; at = url.find('%', at + 1)) {
    const auto code = url.substr(at + 1, 2);
    const auto rest = url.substr(at);
    const bool begins = code == "3F" || code == "3f" || code == "23";
    const bool has_value = rest.find('=') != rest.npos || rest.find("%3D") != rest.npos ||
                           rest.find("%3d") != rest.npos;
    if (begins && has_value) return at;
  }
  return url.size();
}

std::string redacted_one(std::string_view url) {
  if (is_scheme_of("pipe", url)) return redacted_command(url);
  const auto authority = authority_of(url);
  if (!authority) return std::string(url);
  const auto authority_end = authority_end_of(url, *authority);
  const auto at = url.substr(0, authority_end).rfind('@');
  const auto host = at != std::string_view::npos && at >= *authority ? at + 1 : *authority;
  const auto tail =
      std::min(url.find_first_of("?#", authority_end), encoded_query(url, authority_end));
  std::string out(url.substr(0, *authority));
  out += url.substr(host, tail - host);
  if (tail < url.size()) out += "?...";
  return out;
}

// Whether the secrets in `url` are where they belong; otherwise a part of them may look like
// another URL.
bool is_well_written(std::string_view url) {
  const auto authority = authority_of(url);
  if (!authority) return true;
  const auto text = url.substr(*authority, url.find_first_of("/?#", *authority) - *authority);
  return text.find('@') != std::string_view::npos || is_host_and_port(text);
}

// The start of the second URL of a list; the text's size: there is none. Everything after a command
// may belong to it.
std::size_t next_url(std::string_view text) {
  if (is_scheme_of("pipe", text)) return text.size();
  bool in_query = false;
  for (std::size_t at = 1; at < text.size(); ++at) {
    const char before = text[at - 1];
    in_query = in_query || before == '?' || before == '#';
    const bool may_begin = (before == '/' && !in_query) ||
                           (before == ':' && at >= 2 && text[at - 2] == ':') ||
                           (before != ':' && between_urls.find(before) != between_urls.npos);
    if (!may_begin) continue;
    const std::string_view rest = text.substr(at);
    const std::size_t end = scheme_end(rest);
    const bool begins =
        end > 0 && (rest.substr(end + 1).starts_with('/') || is_scheme_of("pipe", rest));
    if (begins) return is_well_written(without_separators(text.substr(0, at))) ? at : text.size();
  }
  return text.size();
}

}  // namespace

std::string redacted(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t next = next_url(text);
    const std::string_view one =
        next < text.size() ? without_separators(text.substr(0, next)) : text.substr(0, next);
    out += redacted_one(one);
    out += text.substr(one.size(), next - one.size());
    text.remove_prefix(next);
  }
  return out;
}

error::error(errc kind, std::string what) : fields_(std::make_shared<fields>()) {
  fields_->kind = kind;
  fields_->what = std::move(what);
}

error::fields& error::own() {
  if (fields_.use_count() > 1) fields_ = std::make_shared<fields>(*fields_);
  return *fields_;
}

error& error::at(std::string_view url) {
  own().where_fingerprint = fingerprint(url);
  return own().where = redacted(url), *this;
}
error& error::offset(std::uint64_t byte) {
  return own().offset = byte, *this;
}
error& error::key(std::string_view sample_key) {
  return own().key = sample_key, *this;
}
error& error::cause(int os_errno) {
  return own().os_errno = os_errno, *this;
}
error& error::reworded(std::string what) {
  return own().what = std::move(what), *this;
}
error& error::hint(std::string_view what_to_do) {
  return own().hint = what_to_do, *this;
}
error& error::retryable(bool yes) {
  if (fields_->retryable != yes) own().retryable = yes;
  return *this;
}
// A stop comes from the caller, a lack of memory or descriptors from the host: the data are sound,
// and skipping would lose good samples.
error& error::skippable(bool yes) {
  const errc kind = fields_->kind;
  const bool can_be =
      yes && kind != errc::stopped && kind != errc::no_memory && kind != errc::no_descriptors;
  if (fields_->skippable != can_be) own().skippable = can_be;
  return *this;
}

error& error::whole_shard() {
  return own().whole_shard = true, *this;
}

error out_of_memory() {
  // Never destroyed, as it may be given until the process ends.
  static const auto& told = *new auto([] {
    error e(errc::no_memory, "the host has no more memory");
    e.hint(
        "lower the budget (engine_options.memory_bytes, MILLRACE_MEMORY), or run fewer programs on "
        "this host");
    return e.fields_;
  }());
  return error(told);
}

namespace {
// Made while there is memory.
[[maybe_unused]] const never_destroyed<error> first_told(out_of_memory());
}  // namespace

std::string error::message() const {
  const fields& f = *fields_;
  std::string out = fmt::format("{}: {}", kind_name(f.kind), printable(f.what));
  if (!f.where.empty()) out += ", at " + printable(f.where);
  if (f.offset) out += fmt::format("{}byte {}", f.where.empty() ? ", at " : " ", *f.offset);
  if (!f.key.empty()) out += fmt::format(", key {}", printable(f.key));
  if (f.os_errno != 0) out += fmt::format(" ({})", std::strerror(f.os_errno));
  if (!f.hint.empty()) out += "; " + printable(f.hint);
  return out;
}

}  // namespace millrace
