#pragma once

#include <string_view>

namespace millrace {

// Names that a folder, a prefix of a store and a '*' match: the same for files and for objects.
// Pure.

// Whether the rest of a path, after a folder or prefix, names a shard: an archive by its ending
// (.tar, .tgz, .tar.gz and so on, for each compression that can be read; in any case), neither
// hidden nor in a hidden folder (a name that begins with a dot). Partial files have another ending.
bool is_shard_name(std::string_view path);

// The rule of is_shard_name(), for errors.
inline constexpr std::string_view shard_names_told =
    "archives end with .tar, .tgz or .tar. and a compression, and do not begin with a dot";

// The name of a shard without its folder and its ending: the last part of the path (of a URL up to
// '?' or '#', as it is written) without what is_archive_name() means (.tar, .tar.gz, .tgz, ...), or
// without its last extension if it has another ending: "b/train-000017.tar.gz" is "train-000017".
std::string_view shard_stem(std::string_view url);

// Whether `path` matches `pattern`: '*' matches any characters but '/'. As in a shell, it does not
// match the dot of a hidden name. Nor does it match the name of a partial file: that is still being
// written, or its writer was killed.
bool matches_pattern(std::string_view path, std::string_view pattern);

}  // namespace millrace
