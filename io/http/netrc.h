#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct login {
  std::string user;
  std::string password;
};

// The entry of a .netrc for `host`: the first "machine" entry for it, else "default"; nullopt if it
// has neither. Pure. Skips macros (macdef); tokens may be quoted, as curl reads them.
std::optional<login> netrc_login(std::string_view text, std::string_view host);

}  // namespace millrace
