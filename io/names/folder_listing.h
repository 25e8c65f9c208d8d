#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/result.h"

namespace millrace {

// What to do where a file or a folder cannot be opened or looked at; `why`: its errno, above 0.
const char* hint_on_path(int why);

// Replaces each local path that names several files by those files, in byte order. A path that ends
// with '/' names the shards in that folder, and one with a '*' the files that match
// (io/names/shard_name.h says what these are). A file with exactly that name takes precedence.
// Fails with not_found where one names nothing, and where a folder cannot be read with the kind of
// its errno. `lists_any`, where given, is set where there is such a path.
result<std::vector<std::string>> with_folders(std::vector<std::string> urls,
                                              bool* lists_any = nullptr);

// The paths of those URLs that are local files, including standard input. Pure.
std::vector<std::string> local_paths(std::span<const std::string> urls);

}  // namespace millrace
