#include "io/http/proxy.h"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>

#include "engine/base/words.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"
#include "io/http/options.h"

namespace millrace {
namespace {

namespace ip = boost::asio::ip;

// Whether the address `host` is in the network `entry`, such as "10.0.0.0/8".
bool in_network(const std::string& host, const std::string& entry) {
  boost::system::error_code failed;
  const auto address = ip::make_address(host, failed);
  if (failed) return false;
  if (address.is_v4()) {
    const auto network = ip::make_network_v4(entry, failed);
    return !failed && network.canonical() ==
                          ip::network_v4(address.to_v4(), network.prefix_length()).canonical();
  }
  const auto network = ip::make_network_v6(entry, failed);
  return !failed && network.canonical() ==
                        ip::network_v6(address.to_v6(), network.prefix_length()).canonical();
}

bool matches(const url& target, std::string entry) {
  if (entry == "*") return true;
  if (entry.starts_with('[')) {
    const auto close = entry.find(']');
    if (target.host != entry.substr(1, close - 1)) return false;
    return close + 1 >= entry.size() || entry.substr(close + 1) == ":" + target.port_or_default();
  }
  if (entry.find('/') != std::string::npos) return in_network(target.host, entry);
  const auto colon = entry.find(':');
  if (colon != std::string::npos && colon == entry.rfind(':')) {
    if (entry.substr(colon + 1) != target.port_or_default()) return false;
    entry.erase(colon);
  }
  if (entry.starts_with('.')) entry.erase(0, 1);
  return target.host == entry || target.host.ends_with("." + entry);
}

bool excluded(const url& target, const std::string& no_proxy) {
  return std::ranges::any_of(split(no_proxy, ','), [&](const std::string& part) {
    return std::ranges::any_of(split(part, ' '),
                               [&](const std::string& host) { return matches(target, host); });
  });
}

}  // namespace

proxy_settings proxies_of(const http_options& options) {
  const auto either = [&](const char* lower, const char* upper) {
    const std::string& first = options.variable(lower);
    return first.empty() ? options.variable(upper) : first;
  };
  // HTTP_PROXY in capitals is ignored: a CGI's caller can set it.
  return {.http_proxy = options.variable("http_proxy"),
          .https_proxy = either("https_proxy", "HTTPS_PROXY"),
          .all_proxy = either("all_proxy", "ALL_PROXY"),
          .no_proxy = either("no_proxy", "NO_PROXY")};
}

result<std::optional<url>> proxy_for(const url& target, const proxy_settings& settings) {
  const bool https = target.scheme == "https";
  std::string text = https ? settings.https_proxy : settings.http_proxy;
  if (text.empty()) text = settings.all_proxy;
  if (text.empty() || !target.socket.empty() || excluded(target, settings.no_proxy)) {
    return std::nullopt;
  }
  if (text.find("://") == std::string::npos) text = "http://" + text;
  auto proxy = parse_url(text);
  if (!proxy || !is_web(*proxy)) {
    return error(errc::usage,
                 fmt::format("{}_proxy is not the URL of an HTTP proxy", target.scheme))
        .at(text)
        .hint("write http://host:port; SOCKS is not supported");
  }
  if (proxy->port.empty() && proxy->scheme == "http") proxy->port = "3128";
  return std::optional(std::move(*proxy));
}

}  // namespace millrace
