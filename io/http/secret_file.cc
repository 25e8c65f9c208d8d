#include "io/http/secret_file.h"

#include <fmt/format.h>

#include <cerrno>

#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/host/log.h"
#include "engine/threads/blocking.h"

namespace millrace {

result<std::string> read_secret_file(const std::string& path, std::string_view what) {
  errno = 0;  // which a folder leaves unset
  const auto content = read_whole_file(path, most_of_secret_file);
  if (!content && content.error().kind() == errc::too_large) return content.error();
  if (!content) {
    error why(errc::not_allowed, fmt::format("cannot read {}", what));
    why.at(shown_file(path)).cause(errno);
    return why.hint("set its variable to the name of a file, not to the secret itself");
  }
  const std::string& text = *content;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) {
    return error(errc::not_allowed, fmt::format("the file of {} is empty", what)).at(path);
  }
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

std::string optional_secrets(const std::string& path, std::string_view what) {
  auto content = read_whole_file(path, most_of_secret_file);
  if (content) return *std::move(content);
  if (error why = content.error(); why.kind() != errc::not_found) {
    why.at(shown_file(path));
    log_notice(fmt::format("nothing is taken from {}: {}", what, why.message()));
  }
  return {};
}

awaitable<result<std::string>> secret_in_file(std::string path, std::string what) {
  co_return co_await blocking([&] { return read_secret_file(path, what); });
}

std::string shown_file(const std::string& path) {
  const auto slash = path.rfind('/');
  const auto dot = path.rfind('.');
  constexpr std::size_t long_extension = 8;
  const bool looks_like_one = path.starts_with('/') && dot != path.npos && dot > slash &&
                              path.size() - dot < long_extension;
  const bool has_folder = slash != path.npos && slash > 0 && is_folder(path.substr(0, slash));
  struct stat there{};
  return looks_like_one || has_folder || host_files().stat(path, there) == 0 ? path : "";
}

}  // namespace millrace
