#pragma once

#include <string>
#include <string_view>

#include "engine/result.h"

namespace millrace {

// The content of a small file, without surrounding white space.
result<std::string> read_secret_file(const std::string& path, std::string_view what);

// The name of a secret's file as it may be shown: empty if it may be the secret itself, given in
// place of a name. That is assumed if neither the file nor its folder exists, and the text does not
// look like /FOLDER/NAME.pem. Blocks for a stat().
std::string shown_file(const std::string& path);

}  // namespace millrace
