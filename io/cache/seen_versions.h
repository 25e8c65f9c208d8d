#pragma once

#include <optional>
#include <string>

#include "io/http/transfer.h"

namespace millrace {

// The last version of `url` that was seen, kept in `folder` for when its server cannot be reached.
// Only versions that can be told from others are kept. Block.
void remember_version(const std::string& folder, const std::string& url,
                      const object_version& version);
std::optional<object_version> remembered_version(const std::string& folder, const std::string& url);

// Whether this file is one of those, or the beginning of one that a crash left.
bool is_seen_version(const std::string& path);

// Removes the file `seen` (seen_name()) where the version in it is the one that entry `name` is of.
void forget_version(const std::string& folder, const std::string& seen, const std::string& name);

}  // namespace millrace
