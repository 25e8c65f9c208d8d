#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace millrace::cli {

// As Python's json.dump(indent=2) writes it.
std::string python_json(const nlohmann::ordered_json& value);

// A file of the user's, in one piece. Throws `failure` where it cannot be read.
std::string read_local(const std::string& path);

}  // namespace millrace::cli
