#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct login {
  std::string user;
  std::string password;
};

// What a .netrc says about `host`: the first "machine" entry for it, else "default"; nullopt for
// neither. Pure. Macros (macdef) are passed over; tokens may be quoted, as curl reads them.
std::optional<login> netrc_login(std::string_view text, std::string_view host);

}  // namespace millrace
