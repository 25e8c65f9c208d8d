#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// The deepest nesting accepted in any format: JSON (indices, states, fields, answers of stores),
// MessagePack, CBOR and XML. Code that walks a document may recurse once per level.
inline constexpr int deepest_nesting = 200;
// The largest JSON document accepted: it takes several times its size in memory.
inline constexpr std::size_t largest_json_bytes = std::size_t{256} << 20;
// The hint for documents that are nested deeper.
inline constexpr const char* flatten_hint = "flatten the document";

// Whether objects and arrays of a JSON text are nested deeper than `most`. Accepts any bytes;
// malformed text is judged by its brackets outside of strings.
bool nests_deeper(std::string_view json, int most = deepest_nesting);

// Why a text must not be parsed as JSON: "it is nested deeper than 200 levels", "it has ... bytes";
// nullopt: it may be parsed. Any bytes; does not say whether it is JSON.
std::optional<std::string> why_not_parsed(std::string_view json);

// Whether a CBOR item (RFC 8949) is bounded: nothing deeper than `most`, no count above the number
// of bytes, strings of indefinite length made only of definite ones, and no integer below -2^63,
// which parsers of 64 bits would take for another one. Accepts any bytes; false if they end within
// an item.
bool is_bounded_cbor(std::string_view cbor, int most = deepest_nesting);

}  // namespace millrace
