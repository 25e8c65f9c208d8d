#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/disks/topology.h"

namespace millrace::cli {

// "md0 on /data (ext4): rotational, 4 spindles, chunk 512.0 KiB"
std::string storage_line(const storage& s);
// The devices it consists of, one per line, each below the one built on it.
std::string storage_tree(const storage& s);
nlohmann::json storage_json(const storage& s);

}  // namespace millrace::cli
