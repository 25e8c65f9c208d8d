#include "train/checkpoints/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "engine/base/error.h"
#include "train/checkpoints/checkpoint_names.h"
#include "train/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view name_begins = "process ";

std::string own_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = 0;
  return fmt::format("{}{} of host {}", name_begins, getpid(), host.data());
}

std::string text_of(int file) {
  std::array<char, 400> text{};
  const ssize_t n = pread(file, text.data(), text.size(), 0);
  return {text.data(), n > 0 ? static_cast<std::size_t>(n) : 0};
}

// Empty if its owner has not written yet, or could not.
bool is_lock(int file) {
  struct stat s{};
  if (fstat(file, &s) != 0 || !S_ISREG(s.st_mode)) return false;
  return s.st_size == 0 || text_of(file).starts_with(name_begins);
}

error not_a_lock(const std::string& path) {
  return error(errc::usage, "another program's file is in the place of a run's lock")
      .at(path)
      .hint("remove that file, or use another --checkpoint-dir");
}

error taken_error(int file, const std::string& folder) {
  const std::string who = text_of(file);
  return error(errc::io_failed, fmt::format("another run writes its checkpoints here{}",
                                            who.empty() ? "" : fmt::format(" ({})", who)))
      .at(folder)
      .hint("wait until it ends, or use another --checkpoint-dir");
}

}  // namespace

folder_lock::folder_lock(const std::string& folder)
    : path_((fs::path(folder) / lock_name).string()) {
  std::error_code why;
  if (fs::exists(folder, why) && !fs::is_directory(folder, why)) {
    throw failure(error(errc::usage, "--checkpoint-dir names a file, and not a folder").at(folder));
  }
  fs::create_directories(folder, why);
  if (why == std::errc::not_a_directory) {
    throw failure(error(errc::usage, "--checkpoint-dir names a folder within a file").at(folder));
  }
  if (why) {
    throw_failed_call(folder, "cannot create the folder for checkpoints", why.value());
  }
  while (!try_lock(folder)) {
  }
}

// False if the run that held the file has removed it in the meantime.
bool folder_lock::try_lock(const std::string& folder) {
  constexpr int how = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = open(path_.c_str(), how | O_CREAT | O_EXCL, 0644);
  is_own_ = file_ >= 0;
  if (file_ < 0 && errno == EEXIST) {
    file_ = open(path_.c_str(), how);
    if (file_ < 0 && errno == ENOENT) return false;
  }
  if (file_ < 0 && errno == ELOOP) throw failure(not_a_lock(path_));
  if (file_ < 0) throw_failed_call(folder, "cannot write checkpoints", errno);
  if (!is_lock(file_)) {
    close(file_);
    throw failure(not_a_lock(path_));
  }
  if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    const error why = taken_error(file_, folder);
    close(file_);
    throw failure(why);
  }
  struct stat mine{};
  if (!is_there() || fstat(file_, &mine) != 0) {
    close(file_);
    return false;
  }
  // An empty file may belong to anybody.
  is_own_ = is_own_ || mine.st_size > 0;
  if (!is_own_) return true;
  // The owner, only for another run's message, so a full disk does no harm.
  const std::string name = own_name();
  [[maybe_unused]] const int cut = ftruncate(file_, 0);
  [[maybe_unused]] const ssize_t written = pwrite(file_, name.data(), name.size(), 0);
  return true;
}

// Whether the path still names the file that is locked.
bool folder_lock::is_there() const {
  struct stat mine{};
  struct stat there{};
  return fstat(file_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

void folder_lock::check_is_there() const {
  if (is_there()) return;
  throw failure(
      error(
          errc::io_failed,
          "the folder of checkpoints was moved or removed, or its lock, while the run wrote there")
          .at(fs::path(path_).parent_path().string())
          .hint("move it back, and resume with --resume auto; nothing was written since"));
}

folder_lock::~folder_lock() {
  // While it is locked: the next one makes its own.
  if (is_own_ && is_there()) unlink(path_.c_str());
  close(file_);
}

}  // namespace millrace
