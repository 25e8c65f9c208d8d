#include "io/gate_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>

namespace millrace {
namespace {

constexpr std::int64_t first_ticket = 1'000'000;  // a boot's first millisecond; places are below

error gate_error(const std::string& path, std::string what, int why) {
  return error(errc::io_failed, std::move(what))
      .at(path)
      .cause(why)
      .hint("set MILLRACE_GATE_DIR to a folder that all users may write to, the same for all");
}

struct flock range(short type, std::int64_t from, std::int64_t count) {
  struct flock r{};
  r.l_type = type;
  r.l_whence = SEEK_SET;
  r.l_start = from;
  r.l_len = count;
  return r;
}

// In a sticky folder O_CREAT is refused for a file of somebody else (fs.protected_regular), so
// opening and making are two steps; whoever loses the race to make it opens it.
int open_or_make(const std::string& path) {
  constexpr int how = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  for (int attempt = 0; attempt < 8; ++attempt) {
    int fd = ::open(path.c_str(), how);
    if (fd >= 0 || errno != ENOENT) return fd;
    fd = ::open(path.c_str(), how | O_CREAT | O_EXCL, 0666);
    if (fd >= 0) {
      fchmod(fd, 0666);  // whatever the umask
      return fd;
    }
    if (errno != EEXIST) return fd;
  }
  return -1;
}

}  // namespace

result<std::unique_ptr<gate_file>> gate_file::open(const std::string& folder,
                                                   const std::string& name, int permits) {
  std::string path = folder + "/millrace-gate-" + name;
  if (mkdir(folder.c_str(), 0777) == 0) chmod(folder.c_str(), 01777);
  const int fd = open_or_make(path);
  if (fd < 0) return gate_error(path, "cannot open the read gate", errno);
  std::unique_ptr<gate_file> made(new gate_file(fd, path, permits));
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1) {
    return gate_error(path, "the read gate is not a plain file with one name", 0);
  }
  // Held by another who tries at this moment: then there are locks.
  const bool locks = made->lock(first_ticket - 1) || errno == EAGAIN || errno == EACCES;
  if (!locks) return gate_error(path, "no locks on the read gate", errno);
  made->unlock(first_ticket - 1);
  return made;
}

gate_file::~gate_file() {
  ::close(fd_);
}

bool gate_file::lock(std::int64_t byte) {
  auto r = range(F_WRLCK, byte, 1);
  return fcntl(fd_, F_OFD_SETLK, &r) == 0;
}

void gate_file::unlock(std::int64_t byte) {
  auto r = range(F_UNLCK, byte, 1);
  fcntl(fd_, F_OFD_SETLK, &r);
}

bool gate_file::others_hold(std::int64_t from, std::int64_t count) const {
  auto r = range(F_WRLCK, from, count);
  return fcntl(fd_, F_OFD_GETLK, &r) == 0 && r.l_type != F_UNLCK;
}

void gate_file::write_name(pid_t who) const {
  const std::string text = fmt::format("{:<10}\n", who);
  // A full or read-only file system costs the others their wake-up; they look again by themselves.
  [[maybe_unused]] const ssize_t written = pwrite(fd_, text.data(), text.size(), 0);
}

void gate_file::queue() {
  if (ticket_ != 0) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::int64_t ticket =
      std::max<std::int64_t>(std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec, first_ticket);
  // Taken only when somebody else queued in the same nanosecond. Out of kernel locks (ENOLCK): then
  // without a ticket's precedence, but still one at a time.
  while (!lock(ticket) && (errno == EAGAIN || errno == EACCES)) ++ticket;
  ticket_ = ticket;
}

void gate_file::leave_queue() {
  if (ticket_ == 0) return;
  unlock(std::exchange(ticket_, 0));
  announce();
}

std::optional<int> gate_file::try_enter() {
  if (others_hold(first_ticket, ticket_ - first_ticket)) return std::nullopt;
  for (std::size_t place = 0; place < taken_.size(); ++place) {
    // What this participant holds already would be granted again.
    if (taken_[place] || !lock(static_cast<std::int64_t>(place))) continue;
    taken_[place] = true;
    unlock(std::exchange(ticket_, 0));
    write_name(getpid());
    return static_cast<int>(place);
  }
  return std::nullopt;
}

void gate_file::leave(int place) {
  taken_[static_cast<std::size_t>(place)] = false;
  unlock(place);
  announce();
}

bool gate_file::idle() const {
  return !others_hold(0, 0);  // 0: to the end
}

bool gate_file::orphaned() const {
  struct stat info{};
  return fstat(fd_, &info) != 0 || info.st_nlink == 0;
}

pid_t gate_file::last_entered() const {
  std::array<char, 16> text{};
  const ssize_t n = pread(fd_, text.data(), text.size() - 1, 0);
  return n > 0 ? static_cast<pid_t>(std::strtol(text.data(), nullptr, 10)) : 0;
}

std::string default_gate_folder() {
  for (const char* folder : {"/run/lock", "/dev/shm"}) {
    struct stat info{};
    constexpr mode_t open_to_all = S_ISVTX | S_IWOTH | S_IXOTH;
    if (stat(folder, &info) == 0 && (info.st_mode & open_to_all) == open_to_all) return folder;
  }
  return "/tmp";
}

}  // namespace millrace
