#pragma once

#include <optional>
#include <string>

#include "io/names/url.h"

namespace millrace {

// The usual variables, as the process has them.
struct proxy_settings {
  std::string http_proxy;   // for http: URLs
  std::string https_proxy;  // for https: URLs
  std::string all_proxy;    // where neither is set
  std::string no_proxy;     // "host,.domain,10.0.0.0/8,[::1],host:port" or "*"
};

// The proxy to ask for `target`; nullopt: none, because none is set or no_proxy names the host.
// Fails with `usage` where the variable is no http: or https: URL. Pure.
result<std::optional<url>> proxy_for(const url& target, const proxy_settings& settings);

}  // namespace millrace
