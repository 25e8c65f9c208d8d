#include "io/cache/seen_versions.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "engine/base/json_tree.h"
#include "engine/files/file_system.h"
#include "io/cache/cache_file.h"
#include "io/cache/entry_name.h"
#include "io/hashes.h"

namespace millrace {
namespace {

constexpr off_t most_file = 64 << 10;
constexpr std::string_view front = R"({"bytes":)";

std::string text_at(const std::string& path) {
  const auto file = open_own(path, O_RDONLY);
  struct stat info{};
  if (!file || host_files().stat(file->fd(), info) != 0 || info.st_size > most_file) return {};
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  if (!read_exactly(file->fd(), text.data(), text.size(), 0)) return {};
  return text;
}

json_tree content_of(const std::string& path) {
  return json_tree::parse(text_at(path)).value_or(json_tree());
}

// ETags and dates are in base64: a server may send any bytes, and JSON allows only UTF-8.
std::optional<std::string> text_of(const json_tree& what, std::string_view name) {
  auto text = base64_decoded(std::string(what.text_of(name)));
  return text && !text->empty() ? text : std::nullopt;
}

}  // namespace

void remember_version(const std::string& folder, const std::string& url,
                      const object_version& version) {
  if (!identifies(version)) return;
  const std::string path = folder + "/" + seen_name(url);
  const std::string text =
      fmt::format(R"({}{},"entry":{},"etag_base64":"{}","last_modified_base64":"{}"}})", front,
                  version.total.value_or(0), nlohmann::json(cache_name(url, version)).dump(),
                  base64(version.etag.value_or("")), base64(version.last_modified.value_or("")));
  if (text_at(path) == text) return;
  static std::atomic<unsigned> count = 0;
  const std::string temporary = fmt::format("{}.{}.{}", path, getpid(), ++count);
  auto file = open_own(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file) return;  // it is only needed while the server is away
  const bool whole = write_exactly(file->fd(), bytes_of(text), 0) == 0;
  if (!whole || host_files().rename(temporary, path) != 0) host_files().unlink(temporary);
}

std::optional<object_version> remembered_version(const std::string& folder,
                                                 const std::string& url) {
  const auto what = content_of(folder + "/" + seen_name(url));
  const json_tree* const member = what.find("bytes");
  const auto* const bytes = member != nullptr ? member->as<std::int64_t>() : nullptr;
  if (bytes == nullptr || *bytes < 0) return std::nullopt;
  object_version v{.total = static_cast<std::uint64_t>(*bytes),
                   .etag = text_of(what, "etag_base64"),
                   .last_modified = text_of(what, "last_modified_base64")};
  if (!identifies(v)) return std::nullopt;
  return v;
}

bool is_seen_version(const std::string& path) {
  const std::string text = text_at(path);
  const auto whole = json_tree::parse(text);
  return text.starts_with(front) && (!whole || !whole->text_of("entry").empty());
}

void forget_version(const std::string& folder, const std::string& seen, const std::string& name) {
  const std::string path = folder + "/" + seen;
  if (!name.empty() && content_of(path).text_of("entry") == name) host_files().unlink(path);
}

}  // namespace millrace
