#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace millrace {

// The parts of a URL. Text without a scheme is a file path, even if it contains a colon.
struct url {
  std::string scheme;    // lower case; "file" for paths, "-" for stdin
  std::string userinfo;  // as written, without '@'
  std::string host;      // lower case except for buckets, IPv6 without brackets, no dot at its end
  std::string port;      // empty: the scheme's default
  std::string path;      // http: target with query, starts with '/'; file: the path, decoded; a
                         // store's: the key as it is, after a '/'
  std::string socket;    // http+unix://%2Frun%2Fx.sock/path: the socket's path; the scheme is http

  // "http://host:port", the end point of a connection; without the port if there is none.
  std::string origin() const;
  bool operator==(const url&) const = default;
  // The port, or "443" for https and "80" for other schemes.
  std::string port_or_default() const;
};

// Whether the URL is http: or https:.
bool is_web(const url& u);
// Whether HTTP serves URLs of a scheme, in lower case: http, https and http+unix.
bool is_web_scheme(std::string_view scheme);

// The parts of `text`. Fails with `usage` if it is neither a URL nor a path.
result<url> parse_url(std::string_view text);

// The URL that `reference` (a Location header) means, relative to `base`. Fails as parse_url()
// does.
result<url> resolve_url(const url& base, std::string_view reference);

// Origin and path, without the userinfo; the path alone if there is no host.
std::string to_string(const url& u);

// The number of a port, 1 to 65535; nullopt for any other text.
std::optional<std::uint16_t> port_number(std::string_view text);

// Decodes %XX. Invalid escapes stay as they are.
std::string percent_decoded(std::string_view text);

}  // namespace millrace
