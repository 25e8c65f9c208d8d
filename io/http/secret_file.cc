#include "io/http/secret_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace millrace {

namespace fs = std::filesystem;

result<std::string> read_secret_file(const std::string& path, std::string_view what) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  if (!(in && content << in.rdbuf())) {
    error why(errc::not_allowed, fmt::format("cannot read {}", what));
    why.at(shown_file(path)).cause(errno);
    return why.hint("set its variable to the name of a file, not to the secret itself");
  }
  std::string text = content.str();
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) {
    return error(errc::not_allowed, fmt::format("the file of {} is empty", what)).at(path);
  }
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

std::string shown_file(const std::string& path) {
  std::error_code failed;
  const auto slash = path.rfind('/');
  const auto dot = path.rfind('.');
  constexpr std::size_t long_extension = 8;
  const bool looks_like_one = path.starts_with('/') && dot != path.npos && dot > slash &&
                              path.size() - dot < long_extension;
  const bool has_folder =
      slash != path.npos && slash > 0 && fs::is_directory(path.substr(0, slash), failed);
  return looks_like_one || has_folder || fs::exists(path, failed) ? path : "";
}

}  // namespace millrace
