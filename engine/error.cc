#include "engine/error.h"

#include <fmt/format.h>

#include <cstring>

namespace millrace {

std::string_view kind_name(errc kind) {
  switch (kind) {
    case errc::usage:
      return "usage";
    case errc::bad_setting:
      return "bad_setting";
    case errc::not_found:
      return "not_found";
    case errc::not_allowed:
      return "not_allowed";
    case errc::connect_failed:
      return "connect_failed";
    case errc::untrusted:
      return "untrusted";
    case errc::timed_out:
      return "timed_out";
    case errc::cut:
      return "cut";
    case errc::http_status:
      return "http_status";
    case errc::protocol:
      return "protocol";
    case errc::io_failed:
      return "io_failed";
    case errc::changed:
      return "changed";
    case errc::truncated:
      return "truncated";
    case errc::bad_archive:
      return "bad_archive";
    case errc::duplicate_field:
      return "duplicate_field";
    case errc::too_large:
      return "too_large";
    case errc::bad_image:
      return "bad_image";
    case errc::bad_field:
      return "bad_field";
    case errc::bad_label:
      return "bad_label";
    case errc::missing_field:
      return "missing_field";
    case errc::no_samples:
      return "no_samples";
    case errc::no_memory:
      return "no_memory";
    case errc::no_descriptors:
      return "no_descriptors";
    case errc::bad_state:
      return "bad_state";
    case errc::bad_index:
      return "bad_index";
    case errc::integrity:
      return "integrity";
    case errc::peer_lost:
      return "peer_lost";
    case errc::too_many_skipped:
      return "too_many_skipped";
    case errc::unsupported:
      return "unsupported";
    case errc::stopped:
      return "stopped";
    case errc::internal:
      return "internal";
  }
  return "internal";
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
    case errc::not_found:
    case errc::not_allowed:
    case errc::connect_failed:
    case errc::untrusted:
    case errc::timed_out:
    case errc::cut:
    case errc::http_status:
    case errc::protocol:
    case errc::io_failed:
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
    case errc::stopped:
      return 130;
    default:
      return 1;
  }
}

std::string redacted(std::string_view url) {
  if (url.starts_with("pipe:")) {  // a command may have secrets among its arguments
    const auto program = url.substr(0, url.find(' '));
    return program.size() == url.size() ? std::string(url) : std::string(program) + " ...";
  }
  const auto scheme_end = url.find("://");
  if (scheme_end == std::string_view::npos) return std::string(url);
  const auto authority = scheme_end + 3;
  const auto authority_end = std::min(url.find_first_of("/?#", authority), url.size());
  const auto at = url.substr(0, authority_end).rfind('@');
  const auto host = at != std::string_view::npos && at >= authority ? at + 1 : authority;
  const auto tail = std::min(url.find_first_of("?#", authority_end), url.size());
  std::string out(url.substr(0, authority));
  out += url.substr(host, tail - host);
  if (tail < url.size()) out += "?...";
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
error& error::hint(std::string_view what_to_do) {
  return own().hint = what_to_do, *this;
}
error& error::retryable(bool yes) {
  return own().retryable = yes, *this;
}
error& error::skippable(bool yes) {
  return own().skippable = yes, *this;
}

namespace {

// Names come out of archives and off the network: control bytes must not reach a terminal.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string error::message() const {
  const fields& f = *fields_;
  std::string out = fmt::format("{}: {}", kind_name(f.kind), printable(f.what));
  if (!f.where.empty()) out += ", at " + printable(f.where);
  if (f.offset) out += fmt::format("{}byte {}", f.where.empty() ? ", at " : " ", *f.offset);
  if (!f.key.empty()) out += fmt::format(", key {}", printable(f.key));
  if (f.os_errno != 0) out += fmt::format(" ({})", std::strerror(f.os_errno));
  if (!f.hint.empty()) out += "; " + f.hint;
  return out;
}

void throw_exception_from_error(const error& why, const boost::source_location& /*where*/) {
  throw failure(why);
}

}  // namespace millrace
