#include "engine/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace millrace {
namespace {

// The length of the UTF-8 character that `text` begins with; 0 where it is not one. Source: RFC
// 3629, section 4.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_surrogate = first == 0xed && second > 0x9f;
  const bool is_beyond = first == 0xf4 && second > 0x8f;
  return is_overlong || is_surrogate || is_beyond ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    const std::size_t length = character_length(text);
    const bool is_c0 = first < 0x20 || first == 0x7f;
    const bool is_c1 = first == 0xc2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xa0;
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    if (length == 0 || is_c0 || is_c1) {
      for (const char c : character) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace millrace
