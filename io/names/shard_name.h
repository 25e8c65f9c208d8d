#pragma once

#include <string_view>

namespace millrace {

// What a folder, a prefix of a store and a '*' stand for: the same for files and for objects. Pure.

// Whether what follows a folder or a prefix is the name of a shard: an archive, by its ending
// (.tar, .tgz, .tar.gz and so on, for each compression that is read; in any case), neither hidden
// nor in a hidden folder (a dot at the front of a name). A partial file has another ending.
bool is_shard_name(std::string_view path);

// What is_shard_name() asks for, in an error's words.
inline constexpr std::string_view shard_names_told =
    "archives end with .tar, .tgz or .tar. and a compression, and do not begin with a dot";

// Whether `path` is what `pattern` describes: '*' stands for any characters but '/'. As in a shell
// it does not for the dot of a hidden name; nor for the name of a partial file, which is part of
// something that is being written, or was when its writer was killed.
bool matches_pattern(std::string_view path, std::string_view pattern);

}  // namespace millrace
