#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/result.h"
#include "pipeline/sample.h"

namespace millrace {

// Whether files of that extension are images, also in formats that only other readers decode. In
// lower case, without its dot.
bool is_image_extension(std::string_view extension);

// Patterns of extensions, joined by ';', with '*' for any text and '?' for any character.
bool matches_any(std::string_view patterns, std::string_view extension);
// Numbers in the row-major order of `shape`, little-endian. `type` as NumPy writes it: f4, i8,
// u1...
struct tensor {
  std::string type;
  std::vector<std::int64_t> shape;
  bytes data;

  std::int64_t count() const;
};
using tensors = std::vector<std::pair<std::string, tensor>>;  // by name; without one, in order

// The value of a field: its bytes where there is no decoder for them; text; an integer; JSON text
// (of json, msgpack and cbor); arrays.
struct json_text {
  std::string text;
};
using value = std::variant<bytes, std::string, std::int64_t, json_text, tensor, tensors>;

struct record {
  std::string key;
  std::vector<std::pair<std::string, value>> fields;  // by extension, as in the sample
  origin where;
  std::shared_ptr<const std::string> url;

  // nullptr where there is none.
  const value* find(std::string_view extension) const;
};

// The value of a field by the last part of its extension, case ignored:
//   txt text transcript: UTF-8 text          cls cls2 class count index inx id: an integer
//   json jsn: JSON    mp msg msgpack: MessagePack    cbor: CBOR    (all as JSON text)
//   npy: a tensor     npz: tensors by name           ten tb tenbin: tensors in order
//   gz: what is compressed, by the part before       anything else, pickles too: its bytes
// Fails with bad_field. No code in the data is ever run: there is no decoder for pickles.
result<value> decode_field(std::string_view extension, const bytes& content);

// All fields of a sample, for map(). Errors name URL, offset and key; skippable.
result<record> decode_fields(const sample& s);

// The first field of each pattern list, in that order: {"jpg;jpeg", "cls"}.
struct tuple_of_values {
  std::vector<value> values;
  std::string key;
  origin where;
  std::shared_ptr<const std::string> url;
};
// For map(). Fails with missing_field, skippable.
std::function<result<tuple_of_values>(const record&)> to_tuple(std::vector<std::string> patterns);

}  // namespace millrace
