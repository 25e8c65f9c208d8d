#include "io/names/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "engine/base/parsed_number.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"

namespace millrace {
namespace {

// The length of "scheme:" at the start of `text`; 0 if there is none (RFC 3986, 3.1). It has at
// least two characters, so that "c:\x" stays a path.
std::size_t scheme_length(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && (std::isalnum(static_cast<unsigned char>(text[n])) != 0 ||
                             (n > 0 && std::string_view("+-.").find(text[n]) != text.npos))) {
    ++n;
  }
  const bool is_scheme = n >= 2 && n < text.size() && text[n] == ':' &&
                         std::isalpha(static_cast<unsigned char>(text[0])) != 0;
  return is_scheme ? n + 1 : 0;
}

// Allows the characters of a host (RFC 3986, 3.2.2): none that could end it, or begin a line.
bool is_host(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-._~%!$&'()*+,;=:").find(c) != std::string_view::npos;
  });
}

result<void> parse_authority(std::string_view authority, url& out) {
  if (const auto at = authority.rfind('@'); at != authority.npos) {
    out.userinfo = authority.substr(0, at);
    authority.remove_prefix(at + 1);
  }
  std::string_view port;
  if (authority.starts_with('[')) {
    const auto close = authority.find(']');
    if (close == authority.npos) return error(errc::usage, "an IPv6 address without ']'");
    out.host = lowered(authority.substr(1, close - 1));
    port = authority.substr(close + 1);
  } else {
    const auto colon = authority.find(':');
    const std::string_view host = authority.substr(0, colon);
    // Hosts of other schemes, such as buckets, may have capitals.
    out.host = is_web_scheme(out.scheme) ? lowered(host) : std::string(host);
    if (out.scheme == "http+unix") {
      out.socket = percent_decoded(host);
      if (out.socket.empty()) return error(errc::usage, "a URL without the path of a socket");
      out.host = "localhost";
      out.scheme = "http";
    }
    port = colon == authority.npos ? std::string_view() : authority.substr(colon);
  }
  if (!port.empty() && port.front() != ':') return error(errc::usage, "text between ']' and '/'");
  if (port.size() > 1) {
    port.remove_prefix(1);
    // Not quoted: in a malformed URL it may be a part of a password.
    if (!port_number(port)) return error(errc::usage, "the port is not a number from 1 to 65535");
    out.port = port;
  }
  if (is_web_scheme(out.scheme) && out.host.ends_with('.')) out.host.pop_back();
  if (out.host.empty()) return error(errc::usage, "a URL without a host");
  if (is_web_scheme(out.scheme) && !is_host(out.host)) {
    return error(errc::usage, "the host contains an invalid byte");
  }
  return {};
}

// Control bytes and spaces in a request line would split it.
std::string encoded_target(std::string_view target) {
  std::string out;
  for (const char c : target) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f) {
      out += fmt::format("%{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

// "/a/./b/../c" is "/a/c". Source: RFC 3986, section 5.2.4, for paths that begin with '/'.
std::string without_dot_segments(std::string_view path) {
  std::vector<std::string_view> kept;
  bool ends_in_folder = false;
  for (std::size_t from = 1; from <= path.size();) {
    const std::size_t end = std::min(path.find('/', from), path.size());
    const std::string_view segment = path.substr(from, end - from);
    ends_in_folder = segment == "." || segment == "..";
    if (!ends_in_folder) kept.push_back(segment);
    if (segment == ".." && !kept.empty()) kept.pop_back();
    from = end + 1;
  }
  std::string out;
  for (const std::string_view segment : kept) out.append("/").append(segment);
  return ends_in_folder ? out + "/" : out;
}

}  // namespace

bool is_web_scheme(std::string_view scheme) {
  return scheme == "http" || scheme == "https" || scheme == "http+unix";
}

bool is_web(const url& u) {
  return u.scheme == "http" || u.scheme == "https";
}

std::string url::port_or_default() const {
  if (!port.empty()) return port;
  return scheme == "https" ? "443" : "80";
}

std::string url::origin() const {
  if (!socket.empty()) {
    std::string escaped;
    for (const char c : socket) {
      const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                            std::string_view("-._~").find(c) != std::string_view::npos;
      escaped +=
          is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    return "http+unix://" + escaped;
  }
  const bool ipv6 = host.find(':') != std::string::npos;
  std::string out = fmt::format("{}://{}{}{}", scheme, ipv6 ? "[" : "", host, ipv6 ? "]" : "");
  if (!port.empty()) out += ":" + port;
  return out;
}

std::string to_string(const url& u) {
  return u.host.empty() ? u.path : u.origin() + u.path;
}

std::optional<std::uint16_t> port_number(std::string_view text) {
  const auto number = parsed_number<std::uint16_t>(text);
  return number && *number > 0 ? number : std::nullopt;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_hex = [&](std::size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

result<url> parse_url(std::string_view text) {
  url out;
  if (text.empty()) return error(errc::usage, "an empty URL");
  // The operating system would end the path there, and open something else.
  if (text.find('\0') != text.npos) return error(errc::usage, "a NUL byte in a URL").at(text);
  const std::size_t n = scheme_length(text);
  if (text == "-" || n == 0) {
    out.scheme = text == "-" ? "-" : "file";
    out.path = text;
    return out;
  }
  out.scheme = lowered(text.substr(0, n - 1));
  std::string_view rest = text.substr(n);
  if (out.scheme == "file") {
    // file:path, file:/path, file:///path, file://localhost/path
    if (rest.starts_with("//")) {
      const std::size_t end = std::min(rest.find('/', 2), rest.size());
      const std::string host = lowered(rest.substr(2, end - 2));
      if (end < rest.size() && !host.empty() && host != "localhost") {
        return error(errc::usage, "a file URL can only name a file on this host")
            .at(text)
            .hint("write file:///path, or the URL under which its server offers it");
      }
      rest.remove_prefix(end);
    }
    out.path = percent_decoded(rest);
    if (out.path.empty()) return error(errc::usage, "a file URL without a path").at(text);
    if (out.path.find('\0') != out.path.npos) {
      return error(errc::usage, "a NUL byte in a file's path").at(text);
    }
    return out;
  }
  if (!rest.starts_with("//")) {
    if (is_web_scheme(out.scheme)) {
      return error(errc::usage, "a URL without a host").at(text).hint("write http://host/path");
    }
    out.path = rest;
    return out;
  }
  rest.remove_prefix(2);
  const auto end = std::min(rest.find_first_of("/?#"), rest.size());
  const bool web = is_web_scheme(out.scheme);
  if (!web && end == 0) {
    return error(errc::usage, "a URL that names no bucket, container or repository")
        .at(text)
        .hint(fmt::format("write {}://NAME/path", out.scheme));
  }
  if (auto parsed = parse_authority(rest.substr(0, end), out); !parsed) {
    return parsed.error().at(text).hint("write http://host[:port]/path");
  }
  if (!web) {  // a store's key may have any character
    out.path = rest.substr(end);
    return out;
  }
  const auto fragment = std::min(rest.find('#'), rest.size());
  out.path = encoded_target(rest.substr(end, fragment - end));
  if (!out.path.starts_with('/')) out.path.insert(0, "/");
  return out;
}

// Source: RFC 3986, section 5.2; without the fragment, which is never sent.
result<url> resolve_url(const url& base, std::string_view reference) {
  if (scheme_length(reference) > 0) return parse_url(reference);
  if (reference.starts_with("//")) return parse_url(base.scheme + ":" + std::string(reference));
  reference = reference.substr(0, reference.find('#'));
  const std::string path = base.path.substr(0, base.path.find('?'));
  url out = base;
  if (reference.empty()) return out;
  if (reference.starts_with('?')) {
    out.path = path + encoded_target(reference);
    return out;
  }
  const std::size_t query = std::min(reference.find('?'), reference.size());
  const std::string folder =
      reference.starts_with('/') ? std::string() : path.substr(0, path.rfind('/') + 1);
  out.path = without_dot_segments(folder + encoded_target(reference.substr(0, query))) +
             encoded_target(reference.substr(query));
  return out;
}

}  // namespace millrace
