#include "io/http/private_host.h"

#include <arpa/inet.h>

#include <boost/asio/ip/address.hpp>
#include <string>

#include "engine/coroutines/async.h"

namespace millrace {
namespace {

namespace ip = boost::asio::ip;

bool is_private(const ip::address_v4& a) {
  return a.is_loopback() || a.is_unspecified() || (a.to_uint() >> 16) == 0xa9fe;  // 169.254.0.0/16
}

bool is_private(const ip::address_v6& a) {
  if (a.is_v4_mapped()) return is_private(ip::make_address_v4(ip::v4_mapped, a));
  constexpr unsigned char nat64[12] = {0, 0x64, 0xff, 0x9b};  // RFC 6052, 2.1
  const auto bytes = a.to_bytes();
  if (std::equal(std::begin(nat64), std::end(nat64), bytes.begin())) {
    return is_private(ip::address_v4({bytes[12], bytes[13], bytes[14], bytes[15]}));
  }
  constexpr std::string_view aws_metadata = "fd00:ec2::254";
  return a.is_loopback() || a.is_unspecified() || a.is_link_local() ||
         a.to_string() == aws_metadata;
}

}  // namespace

bool is_private_address(std::string_view text) {
  boost::system::error_code not_an_address;
  const auto address = ip::make_address(std::string(text), not_an_address);
  if (not_an_address) return false;
  return address.is_v6() ? is_private(address.to_v6()) : is_private(address.to_v4());
}

bool is_private_host(std::string_view host) {
  if (host.ends_with('.')) host.remove_suffix(1);
  if (host == "localhost" || host.ends_with(".localhost") || host == "metadata.google.internal") {
    return true;
  }
  if (is_private_address(host)) return true;
  in_addr old_form{};
  return inet_aton(std::string(host).c_str(), &old_form) != 0 &&
         is_private(ip::address_v4(ntohl(old_form.s_addr)));
}

}  // namespace millrace
