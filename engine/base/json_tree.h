#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// The memory that a document's tree may take: values take up to a hundred times their text.
struct json_limit {
  std::size_t most = usual;
  // If set: charges a number of bytes for as long as the caller keeps the tree, or refuses.
  bool (*take)(std::size_t bytes) = nullptr;

  // Enough for documents of small facts: credentials, answers of stores, entries of a cache.
  static constexpr std::size_t usual = std::size_t{32} << 20;
};

// A parsed JSON document, for states and indices. Unlike nlohmann's, it allocates nothing on
// destruction, so that a document can be discarded when memory has run out.
class json_tree {
 public:
  // Arrays of integers only take eight bytes per element.
  using integers = std::vector<std::int64_t>;
  using list = std::vector<json_tree>;
  using object = std::map<std::string, json_tree, std::less<>>;
  // A number is an std::int64_t if it fits, else an std::uint64_t, else a double.
  using anything = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double,
                                std::string, integers, list, object>;

  // nullopt: it is not JSON, or exceeds the limits (engine/base/nesting.h, and `limit`).
  static std::optional<json_tree> parse(std::string_view text, const json_limit& limit = {});
  // The same, with the reason: too_large if it takes more than `limit`, else bad_field.
  static result<json_tree> read(std::string_view text, const json_limit& limit);
  // For documents that the caller knows to be within the limits. Byte strings, which JSON lacks,
  // become objects: {"bytes": [...], "subtype": null or a number}. nullopt: it is not of that
  // format.
  enum class binary_format : std::uint8_t { message_pack, cbor };
  static std::optional<json_tree> parse(std::string_view bytes, binary_format format);

  json_tree() = default;
  explicit json_tree(anything of) : of_(std::move(of)) {}

  // Null if it is something else.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&of_);
  }
  // A member of an object; null if there is none.
  const json_tree* find(std::string_view name) const;
  // The text of a member; empty if there is none, or it is not text.
  std::string_view text_of(std::string_view name) const;
  // In the shortest form, with the names of objects in order. What is not UTF-8 becomes U+FFFD.
  std::string dump() const;
  // A form that errors may quote: no secrets of URLs, no control bytes, at most 100 characters.
  std::string excerpt() const;

 private:
  anything of_ = nullptr;
};

// `text` as JSON, in quotes. What is not UTF-8 becomes U+FFFD.
std::string json_text_of(std::string_view text);

}  // namespace millrace
