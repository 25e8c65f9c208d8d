#pragma once

#include <string>
#include <vector>

#include "engine/result.h"

namespace millrace {

// Puts files in the place of each local path that names many, in byte order: of one that ends with
// '/', the archives in that folder (".tar", ".tar.*", ".tgz" and their kin); of one with a '*',
// which stands for any characters but '/', what it describes. A file of that very name comes first.
// Fails with not_found where one names nothing, with not_allowed where a folder cannot be read.
result<std::vector<std::string>> with_folders(std::vector<std::string> urls);

}  // namespace millrace
