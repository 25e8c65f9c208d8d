#include "io/disks/gate_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <string_view>

#include "engine/files/file_system.h"
#include "engine/host/clock.h"

namespace millrace {
namespace {

constexpr std::int64_t first_ticket = 1'000'000;  // a boot's first millisecond; places are below it

error gate_error(const std::string& path, std::string what, int why) {
  return error(kind_of(why), std::move(what))
      .at(path)
      .cause(why)
      .hint(
          "set source_options.gate_folder (MILLRACE_GATE_DIR) to a folder that all users may write "
          "to, the same for all");
}

struct flock range(short type, std::int64_t from, std::int64_t count) {
  struct flock r{};
  r.l_type = type;
  r.l_whence = SEEK_SET;
  r.l_start = from;
  r.l_len = count;
  return r;
}

// In a sticky folder O_CREAT is refused for a file of another user (fs.protected_regular), so
// opening and creating are two steps; a participant that loses the race to create it opens it.
int open_or_make(const std::string& path) {
  constexpr int how = O_RDWR | O_NOFOLLOW | O_NONBLOCK;
  file_system& files = host_files();
  int fd = -ENOENT;
  for (int attempt = 0; attempt < 8; ++attempt) {
    fd = files.open(path, how);
    if (fd != -ENOENT) return fd;
    fd = files.open(path, how | O_CREAT | O_EXCL, 0666);
    if (fd >= 0) files.set_mode(fd, 0666);  // regardless of the umask
    if (fd != -EEXIST) return fd;
  }
  return fd;
}

void make_meeting_place(const std::string& folder) {
  if (host_files().make_folder(folder, 0777) != 0) return;
  const held_file made(host_files().open(folder, O_RDONLY | O_DIRECTORY));
  if (made) host_files().set_mode(made.fd(), 01777);
}

// Whether it is a plain file that loses nothing when a name is written to its start. Any user can
// give a file a second name, so the name of a gate may lead to another file: one with a second name
// must also look like a gate.
bool is_gate(int fd) {
  struct stat info{};
  if (host_files().stat(fd, info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (info.st_nlink <= 1) return true;
  std::array<char, 64> text{};
  const ssize_t n = read_all(fd, std::as_writable_bytes(std::span(text)), 0);
  const std::string_view content(text.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return (info.st_mode & 0777) == 0666 && info.st_size < static_cast<off_t>(text.size()) &&
         content.find_first_not_of("0123456789 \n") == std::string_view::npos;
}

// Whether a lock was refused because another participant has it.
bool is_held(int code) {
  return code == -EAGAIN || code == -EACCES;
}

}  // namespace

result<std::unique_ptr<gate_file>> gate_file::open(const std::string& folder,
                                                   const std::string& name, int permits) {
  std::string path = folder + "/millrace-gate-" + name;
  make_meeting_place(folder);
  held_file file(open_or_make(path));
  if (!file) return gate_error(path, "cannot open the read gate", -file.fd());
  if (!is_gate(file.fd()))
    return gate_error(path, "the read gate is not a plain file, or it is a second name of one", 0);
  std::unique_ptr<gate_file> made(new gate_file(std::move(file), path, permits));
  // If another participant holds it at this moment, locks work here too.
  const int locked = made->lock(first_ticket - 1);
  if (locked != 0 && !is_held(locked)) {
    return gate_error(path, "the read gate cannot be locked", -locked);
  }
  made->unlock(first_ticket - 1);
  return made;
}

int gate_file::lock(std::int64_t byte) {
  return host_files().lock(file_.fd(), range(F_WRLCK, byte, 1));
}

void gate_file::unlock(std::int64_t byte) {
  host_files().lock(file_.fd(), range(F_UNLCK, byte, 1));
}

bool gate_file::others_hold(std::int64_t from, std::int64_t count) const {
  auto r = range(F_WRLCK, from, count);
  return host_files().find_lock(file_.fd(), r) == 0 && r.l_type != F_UNLCK;
}

void gate_file::write_name(pid_t who) const {
  const std::string text = fmt::format("{:<10}\n", who);
  // If the file system is full or read-only, the others are not woken; they look again by
  // themselves.
  host_files().write(file_.fd(), std::as_bytes(std::span(text)), 0);
}

void gate_file::queue() {
  if (ticket_ != 0) return;
  const auto now = std::chrono::nanoseconds(steady_clock::now().time_since_epoch());
  std::int64_t ticket = std::max<std::int64_t>(now.count(), first_ticket);
  // Taken only if another participant queued in the same nanosecond, or if a program locks more
  // than a ticket. In the latter case, and when the kernel is out of locks (ENOLCK), this
  // participant has no ticket's precedence, but still enters only if a place is free.
  constexpr int most_tries = 16;
  for (int i = 0; i < most_tries && is_held(lock(ticket)); ++i) ++ticket;
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
    // A lock that this participant already holds would be granted again.
    if (taken_[place] || lock(static_cast<std::int64_t>(place)) != 0) continue;
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
  struct stat open{};
  struct stat named{};
  return host_files().stat(file_.fd(), open) != 0 || host_files().stat(path_, named, false) != 0 ||
         open.st_ino != named.st_ino || open.st_dev != named.st_dev;
}

pid_t gate_file::last_entered() const {
  std::array<char, 16> text{};
  const ssize_t n =
      read_all(file_.fd(), std::as_writable_bytes(std::span(text)).first(text.size() - 1), 0);
  return n > 0 ? static_cast<pid_t>(std::strtol(text.data(), nullptr, 10)) : 0;
}

std::string default_gate_folder() {
  for (const char* folder : {"/run/lock", "/dev/shm"}) {
    struct stat info{};
    constexpr mode_t open_to_all = S_ISVTX | S_IWOTH | S_IXOTH;
    if (host_files().stat(folder, info) == 0 && (info.st_mode & open_to_all) == open_to_all)
      return folder;
  }
  return "/tmp";
}

}  // namespace millrace
