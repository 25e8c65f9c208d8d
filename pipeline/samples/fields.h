#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/result.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// True if an extension matches one of the patterns, which are joined by ';', with '*' for any text
// and '?' for any character: "jpg;seg.*".
bool matches_any(std::string_view patterns, std::string_view extension);
// Numbers in the row-major order of `shape`, little-endian.
struct tensor {
  std::string type;                 // as NumPy writes it: f4, i8, u1, ...
  std::vector<std::int64_t> shape;  // empty: one number
  bytes data;                       // count() numbers

  // The product of `shape`.
  std::int64_t count() const;
};
using tensors = std::vector<std::pair<std::string, tensor>>;  // by name; without one, in order

// JSON of a field: also of MessagePack and CBOR, converted.
struct json_text {
  std::string text;  // valid JSON
};
// The value of a field: its bytes if there is no decoder for them, a text, an integer, JSON, an
// array, or several.
using value = std::variant<bytes, std::string, std::int64_t, json_text, tensor, tensors>;

// A sample with decoded fields, from decode_fields().
struct record {
  std::string key;                                    // of the sample
  std::vector<std::pair<std::string, value>> fields;  // by extension, as in the sample
  origin where;                                       // the sample's
  std::shared_ptr<const std::string> url;             // of its shard; may be null

  // The field with this extension; nullptr if there is none. Valid until `fields` changes.
  const value* find(std::string_view extension) const;
};

// The value of a field, by the last part of its extension, case ignored:
//   txt text transcript: UTF-8 text          cls cls2 class count index inx id: an integer
//   json jsn: JSON    mp msg msgpack: MessagePack    cbor: CBOR    (all as JSON text)
//   npy: a tensor     npz: tensors by name           ten tb tenbin: tensors in order
//   gz: decompressed, then by the part before it     any other, pickles too: its bytes
// Fails with bad_field, or with too_large if decoding needs too much memory. No code in the data is
// ever run: there is no decoder for pickles. Any thread.
result<value> decode_field(std::string_view extension, const bytes& content);

// Decodes all fields of a sample: for map(). Errors name URL, offset and key, and are skippable.
result<record> decode_fields(const sample& s);

// Chosen fields of a sample, from to_tuple().
struct tuple_of_values {
  std::vector<value> values;               // one for each list of patterns
  std::string key;                         // of the sample
  origin where;                            // the sample's
  std::shared_ptr<const std::string> url;  // of its shard; may be null
};
// A function for map(): the first field of each list of extensions, in order, such as {"jpg;jpeg",
// "cls"}. Fails with missing_field, skippable.
std::function<result<tuple_of_values>(const record&)> to_tuple(std::vector<std::string> patterns);

}  // namespace millrace
