#pragma once

#include <string_view>

namespace millrace {

// Whether an IP address is one to which a public server must not redirect: loopback, link-local
// (where clouds serve secrets) or unspecified, also inside an IPv6 address. False for other text.
// Pure.
bool is_private_address(std::string_view ip);

// Whether a host's name shows that it is private: an address in any form that getaddrinfo() accepts
// (127.1, 0x7f.1, 2130706433), localhost, and the names under which clouds serve secrets. Other
// names are known only after a look-up. Pure.
bool is_private_host(std::string_view host);

}  // namespace millrace
