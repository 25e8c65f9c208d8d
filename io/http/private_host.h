#pragma once

#include <string_view>

namespace millrace {

// Whether an IP address is one to which a public server must not redirect: loopback, link-local
// (where clouds serve secrets), unspecified; also inside an IPv6 address. False for what is no
// address. Pure.
bool is_private_address(std::string_view ip);

// Whether a host's name shows that it is private: an address in any form that getaddrinfo() takes
// (127.1, 0x7f.1, 2130706433), localhost, and the names that clouds serve secrets under. Other
// names are known only once they have been looked up. Pure.
bool is_private_host(std::string_view host);

}  // namespace millrace
