#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// Meaning of the names of an archive's members: as in WebDataset, a key and an extension.

// Whether WebDataset's reader ignores a member of this name.
bool is_meta_name(std::string_view name);

// The parts of a member's name.
struct key_and_extension {
  std::string key;        // with the folder
  std::string extension;  // in lower case, without its first dot
};

// Splits a member's name as WebDataset does: at the first dot of the last path component that has
// at least one character before it; the folder belongs to the key. nullopt: the name has no
// extension, and the member is left out.
std::optional<key_and_extension> split_name(std::string_view name);

// The extension, as written, of a name for which split_name() would give this key; nullopt for
// another name.
std::optional<std::string_view> extension_after(std::string_view key, std::string_view name);

// Whether a sample may have a field of this extension: in lower case, without a leading dot, and
// without blanks at its ends.
bool is_extension(std::string_view text);

// A checksum over the name of a sample's first file, by which an index distinguishes its samples.
std::uint16_t name_sum(std::string_view key, std::string_view extension);

// The most fields of a sample: names are kept with every sample, and compared.
inline constexpr std::size_t most_fields = 1000;
inline constexpr std::size_t most_name_bytes = 128 << 10;  // of a sample: its key and extensions
// The limit that a sample of this size exceeds, as an error says it; empty: none.
std::string exceeded_limit(std::size_t fields, std::size_t name_bytes);

}  // namespace millrace
