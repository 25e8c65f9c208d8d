#include "cli/index_text.h"

#include <nlohmann/json.hpp>

#include "engine/folders.h"
#include "engine/open_file.h"

namespace millrace::cli {

using nlohmann::ordered_json;

std::string python_json(const ordered_json& value) {
  return value.dump(2, ' ', true, ordered_json::error_handler_t::replace);
}

std::string read_local(const std::string& path) {
  if (const auto file = open_file::open(path); !file) throw failure(file.error());
  return read_whole_file(path).value();
}

}  // namespace millrace::cli
