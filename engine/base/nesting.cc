#include "engine/base/nesting.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

namespace millrace {
namespace {

// Reads CBOR items' heads one after the other; what is open is on a stack of its own.
class cbor_walk {
 public:
  cbor_walk(std::string_view text, int most) : text_(text), most_(most) {}

  bool is_bounded() {
    do {
      if (!one()) return false;
      while (!open_.empty() && open_.back().left == 0) open_.pop_back();
    } while (!open_.empty());
    return true;
  }

 private:
  static constexpr std::uint64_t until_break = ~std::uint64_t{0};
  struct level {
    std::uint64_t left = 0;   // items
    unsigned only_major = 8;  // within a string of indefinite length: its major type
  };

  std::optional<std::uint64_t> number(unsigned additional) {
    if (additional < 24) return additional;
    if (additional > 27) return std::nullopt;
    const std::size_t size = std::size_t{1} << (additional - 24);
    if (text_.size() - at_ < size) return std::nullopt;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      value = value << 8 | static_cast<unsigned char>(text_[at_++]);
    }
    return value;
  }

  bool opens(level within) {
    open_.push_back(within);
    return open_.size() <= static_cast<std::size_t>(most_);
  }

  bool one() {
    if (at_ == text_.size()) return false;
    const auto first = static_cast<unsigned char>(text_[at_++]);
    const unsigned major = first >> 5;
    const unsigned additional = first & 31;
    const bool is_string = major == 2 || major == 3;
    const bool is_collection = major == 4 || major == 5;
    if (first == 0xFF) {
      if (open_.empty() || open_.back().left != until_break) return false;
      open_.back().left = 0;
      return true;
    }
    if (!open_.empty()) {
      const unsigned only = open_.back().only_major;
      if (only < 8 && (major != only || additional == 31)) return false;
      if (open_.back().left != until_break) --open_.back().left;
    }
    if (additional == 31) {
      if (!is_string && !is_collection) return false;
      return opens({.left = until_break, .only_major = is_string ? major : 8});
    }
    const auto value = number(additional);
    if (!value) return false;
    if (major == 1 && *value >> 63 != 0) return false;  // -1 - value
    if (is_string) {
      if (*value > text_.size() - at_) return false;
      at_ += static_cast<std::size_t>(*value);
    } else if (is_collection) {
      if (*value > text_.size()) return false;
      return opens({.left = *value * (major - 3)});
    } else if (major == 6) {
      return opens({.left = 1});
    }
    return true;
  }

  std::string_view text_;
  int most_;
  std::size_t at_ = 0;
  std::vector<level> open_;
};

}  // namespace

bool nests_deeper(std::string_view json, int most) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    if (c == '"') in_string = true;
    if ((c == '[' || c == '{') && ++depth > most) return true;
    if (c == ']' || c == '}') --depth;
  }
  return false;
}

std::optional<std::string> why_not_parsed(std::string_view json) {
  if (json.size() > largest_json_bytes) {
    return fmt::format("it has {} bytes, more than {}", json.size(), largest_json_bytes);
  }
  if (nests_deeper(json)) return fmt::format("it is nested deeper than {} levels", deepest_nesting);
  return std::nullopt;
}

bool is_bounded_cbor(std::string_view cbor, int most) {
  return cbor_walk(cbor, most).is_bounded();
}

}  // namespace millrace
