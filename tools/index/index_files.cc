#include "tools/index/index_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"
#include "engine/files/folders.h"
#include "engine/files/open_file.h"

namespace millrace {
namespace {

// wids and this library begin an index with its kind; other writers' indices have the list.
bool is_index(std::string_view head) {
  const auto first = head.find_first_not_of(" \t\r\n");
  return first != head.npos && head[first] == '{' &&
         (head.find("\"wids-shard-index-v1\"") != head.npos ||
          head.find("\"shardlist\"") != head.npos);
}

bool is_sidecar(std::string_view head) {
  return head.starts_with("millrace offsets ");
}

failure is_changed_by_another(const std::string& path) {
  return failure(error(errc::usage, "another run is changing the index")
                     .at(path)
                     .hint("run this again when it has ended"));
}

}  // namespace

constinit const file_kind index_document{"an index of shards", is_index};
constinit const file_kind index_sidecar{"a file of offsets", is_sidecar};

std::string quoted_json(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string python_json(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

std::string read_local(const std::string& path) {
  if (const auto file = open_file::open(path); !file) throw failure(file.error());
  return read_whole_file(path, any_size).value();
}

held_file hold_index(const std::string& path) {
  for (;;) {
    struct stat there{};
    if (host_files().stat(path, there) != 0 || !S_ISREG(there.st_mode)) return {};
    held_file held(host_files().open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!held) return {};  // reading it will report why
    if (host_files().lock_whole(held.fd()) == -EWOULDBLOCK) throw is_changed_by_another(path);
    struct stat mine{};
    const bool is_known =
        host_files().stat(held.fd(), mine) == 0 && host_files().stat(path, there) == 0;
    if (!is_known || (mine.st_dev == there.st_dev && mine.st_ino == there.st_ino)) return held;
  }
}

void check_nobody_else_writes(const std::string& path) {
  if (partial_of_another(std::array{path})) throw is_changed_by_another(path);
}

}  // namespace millrace
