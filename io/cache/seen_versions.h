#pragma once

#include <optional>
#include <string>

#include "io/http/transfer.h"

namespace millrace {

// The last seen version of `url`, kept in `folder` for when its server cannot be reached. Only
// versions that can be distinguished from others are kept. Block.
void remember_version(const std::string& folder, const std::string& url,
                      const object_version& version);
std::optional<object_version> remembered_version(const std::string& folder, const std::string& url);

// Whether this file is one of those, or the beginning of one, left by a crash.
bool is_seen_version(const std::string& path);

// Removes the file `seen` (seen_name()) if its version is that of entry `name`.
void forget_version(const std::string& folder, const std::string& seen, const std::string& name);

}  // namespace millrace
