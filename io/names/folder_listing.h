#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// The hint for a file or folder that cannot be opened or examined. `why`: the errno, above 0.
const char* hint_on_path(int why);

// Replaces each local path that names several files by those files, in byte order: a path that ends
// with '/' by the shards in that folder, one with a '*' by the files that match
// (io/names/shard_name.h defines both). A file with exactly that name takes precedence. Fails with
// not_found if a path names nothing, and with the kind by errno if a folder cannot be read. Sets
// `lists_any`, if given, when a path names several files.
result<std::vector<std::string>> with_folders(std::vector<std::string> urls,
                                              bool* lists_any = nullptr);

// The paths of those URLs that are local files, including standard input. Pure.
std::vector<std::string> local_paths(std::span<const std::string> urls);

}  // namespace millrace
