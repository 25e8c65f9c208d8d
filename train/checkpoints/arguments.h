#pragma once

#include <map>
#include <string>

namespace millrace {

// A command line: the value of every option by its name ("--batch-size" -> "32"), given or not.
using arguments = std::map<std::string, std::string>;

}  // namespace millrace
