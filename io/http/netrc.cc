#include "io/http/netrc.h"

#include <algorithm>
#include <cctype>

#include "engine/coroutines/scope.h"

namespace millrace {
namespace {

// Takes the next token off `text`; empty at its end.
std::string next_token(std::string_view& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  text.remove_prefix(std::min(first, text.size()));
  if (!text.starts_with('"')) {
    const auto end = std::min(text.find_first_of(" \t\r\n"), text.size());
    std::string token(text.substr(0, end));
    text.remove_prefix(end);
    return token;
  }
  std::string token;
  std::size_t at = 1;
  for (; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) ++at;
    token += text[at];
  }
  text.remove_prefix(std::min(at + 1, text.size()));
  return token;
}

void skip_line(std::string_view& text) {
  text.remove_prefix(std::min(text.find('\n'), text.size()));
}

// A macro ends at an empty line.
void skip_macro(std::string_view& text) {
  const auto end = text.find("\n\n");
  text.remove_prefix(std::min(end, text.size()));
}

}  // namespace

std::optional<login> netrc_login(std::string_view text, std::string_view host) {
  bool here = false;
  login found;
  for (;;) {
    const std::string token = next_token(text);
    const bool ends_entry = token.empty() || token == "machine" || token == "default";
    if (ends_entry && here) return found;
    if (token.empty()) return std::nullopt;
    if (token.starts_with('#')) {
      skip_line(text);
    } else if (token == "machine") {
      here = next_token(text) == host;
    } else if (token == "default") {
      here = true;
    } else if (token == "macdef") {
      skip_macro(text);
    } else if (token == "login" || token == "password" || token == "account") {
      std::string value = next_token(text);
      if (here && token == "login") {
        found.user = std::move(value);
      } else if (here && token == "password") {
        found.password = std::move(value);
      }
    }
  }
}

}  // namespace millrace
