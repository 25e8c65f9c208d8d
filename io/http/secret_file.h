#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/coroutines/awaitable.h"

namespace millrace {

// Bytes of the largest file of secrets.
inline constexpr std::size_t most_of_secret_file = 1 << 20;
// The content of a small file, without surrounding white space. Blocks.
result<std::string> read_secret_file(const std::string& path, std::string_view what);
// The content of a file of secrets that need not exist; empty, with a notice, if it cannot be read.
// Blocks.
std::string optional_secrets(const std::string& path, std::string_view what);
// read_secret_file() by blocking().
awaitable<result<std::string>> secret_in_file(std::string path, std::string what);

// The name of a secret's file as it may be shown: empty if it may be the secret itself, given in
// place of a name. That is assumed if neither the file nor its folder exists, and the text does not
// look like /FOLDER/NAME.pem. Blocks for a stat().
std::string shown_file(const std::string& path);

}  // namespace millrace
