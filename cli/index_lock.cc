#include "cli/index_lock.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>

#include "engine/error.h"
#include "engine/written_file.h"

namespace millrace::cli {
namespace {

failure is_changed_by_another(const std::string& path) {
  return failure(error(errc::usage, "another run is changing the index")
                     .at(path)
                     .hint("run this again when it has ended"));
}

}  // namespace

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

}  // namespace millrace::cli
