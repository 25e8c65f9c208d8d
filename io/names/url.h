#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/result.h"

namespace millrace {

// A URL's parts. Text without a scheme is a file path, also when it contains a colon later on.
struct url {
  std::string scheme;    // lower case; "file" for paths, "-" for stdin
  std::string userinfo;  // as written, without '@'
  std::string host;      // lower case (but for a bucket), IPv6 without brackets, no dot at its end
  std::string port;      // empty: the scheme's own
  std::string path;      // http: target with query, starts with '/'; file: the path, decoded; a
                         // store's: the key as it is, after a '/'
  std::string socket;    // http+unix://%2Frun%2Fx.sock/path: the socket's path; the scheme is http

  // "http://host:port", the end point of a connection.
  std::string origin() const;
  bool operator==(const url&) const = default;
  std::string port_or_default() const;
};

// Fails with `usage` for text that is neither a URL nor a path.
result<url> parse_url(std::string_view text);

// The URL that `reference` (a Location header) means, seen from `base`.
result<url> resolve_url(const url& base, std::string_view reference);

std::string to_string(const url& u);

// 1 to 65535; nullopt for any other text.
std::optional<std::uint16_t> port_number(std::string_view text);

// Decodes %XX. Invalid escapes stay as they are.
std::string percent_decoded(std::string_view text);

}  // namespace millrace
