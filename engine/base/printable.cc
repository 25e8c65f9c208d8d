#include "engine/base/printable.h"

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

// Whether a terminal shows nothing for it, or other text than stands there: spaces of no width,
// marks of direction, a byte order mark. Source: Unicode 16, general categories Cf, Zl and Zp, of
// the characters below U+10000; and the tags. Not the joiners, which words and emoji are
// written with, nor the signs of Arabic and Syriac numbers, which are seen.
bool is_unseen(std::string_view character) {
  std::uint32_t code = 0;
  if (character.size() == 3) {
    code = static_cast<unsigned char>(character[0]) & 0x0fU;
  } else if (character.size() == 4) {
    code = static_cast<unsigned char>(character[0]) & 0x07U;
  } else {
    return character == "\u00ad" || character == "\u061c";
  }
  for (const char c : character.substr(1)) {
    code = (code << 6U) | (static_cast<unsigned char>(c) & 0x3fU);
  }
  const auto is_in = [code](std::uint32_t first, std::uint32_t last) {
    return code >= first && code <= last;
  };
  return code == 0x180e || code == 0x200b || is_in(0x200e, 0x200f) || is_in(0x2028, 0x202e) ||
         is_in(0x2060, 0x206f) || code == 0xfeff || is_in(0xfff9, 0xfffb) ||
         is_in(0xe0000, 0xe007f);
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
    if (length == 0 || is_c0 || is_c1 || is_unseen(character)) {
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

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    if (first < 0x80) continue;
    const std::size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || text.size() - i < more) return false;
    const auto second = static_cast<unsigned char>(text[i]);
    const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (second < low || second > high) return false;
    for (std::size_t k = 1; k < more; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += more;
  }
  return true;
}

}  // namespace millrace
