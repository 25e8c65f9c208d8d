#pragma once

#include <optional>
#include <string>

#include "io/names/url.h"

namespace millrace {

struct http_options;

// The usual variables, with the process's values.
struct proxy_settings {
  std::string http_proxy;   // for http: URLs
  std::string https_proxy;  // for https: URLs
  std::string all_proxy;    // used if the scheme's is not set
  std::string no_proxy;     // "host,.domain,10.0.0.0/8,[::1],host:port" or "*"
};

// By http_options::environment: names in lower case win, and HTTP_PROXY in capitals is ignored.
proxy_settings proxies_of(const http_options& options);

// The proxy for `target`; nullopt: none, because none is set or no_proxy names the host. Fails with
// `usage` if the variable is not an http: or https: URL. Pure.
result<std::optional<url>> proxy_for(const url& target, const proxy_settings& settings);

}  // namespace millrace
