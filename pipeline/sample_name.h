#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// What the names of an archive's members say: as in WebDataset, a key and an extension.

// Whether WebDataset's reader ignores this member.
bool is_meta_name(std::string_view name);

struct key_and_extension {
  std::string key;
  std::string extension;  // lower case
};

// Splits a member name as WebDataset does: at the first dot of the last path component that has one
// character at least before it; the folder belongs to the key. nullopt: the name has no extension,
// and the member is left out.
std::optional<key_and_extension> split_name(std::string_view name);

// The extension, as it is written, of a name that split_name() would give this key.
std::optional<std::string_view> extension_behind(std::string_view key, std::string_view name);

// A sum over the name of a sample's first file, by which an index tells its samples apart.
std::uint16_t name_sum(std::string_view key, std::string_view extension);

// Limits of a sample: names are kept with every sample, and compared.
inline constexpr std::size_t most_fields = 1000;
inline constexpr std::size_t most_name_bytes = 128 << 10;  // key and extensions together

}  // namespace millrace
