#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace millrace::cli {

// Formatted like Python's json.dump(indent=2).
std::string python_json(const nlohmann::ordered_json& value);

// Reads a whole local file. Throws `failure` if it cannot be read.
std::string read_local(const std::string& path);

}  // namespace millrace::cli
