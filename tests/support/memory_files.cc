#include "tests/support/memory_files.h"

#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "engine/host/clock.h"
#include "tests/support/memory_node.h"

namespace millrace::testing {
namespace {

// Far above the kernel's descriptors, so that the two cannot be confused.
constexpr int first_fd = 1 << 20;

std::string last_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

memory_files::memory_files(std::uint64_t seed)
    : root_(std::make_shared<node>()), random_(seed, purpose::fake_data, 7), next_fd_(first_fd) {
  root_->is_folder = true;
  root_->inode = 1;
}

memory_files::~memory_files() = default;

memory_files::call memory_files::begin(const char* which, const std::string& path) {
  ++calls_;
  if (is_on_io_thread) {
    const unhooked here;
    calls_on_io_threads.insert(std::string(which) + " " + path);
  }
  if (dead_.contains(current_)) return {-EIO};
  return {fault ? fault(which, path) : 0};
}

memory_files::call memory_files::begin(const char* which, int fd) {
  const auto found = open_.find(fd);
  if (found == open_.end()) return {-EBADF};
  return {begin(which, found->second->path).refused, found->second.get()};
}

memory_files::node_ptr memory_files::find(const std::string& path) const {
  node_ptr at = root_;
  for (std::size_t i = 1; i < path.size();) {
    const std::size_t end = std::min(path.find('/', i), path.size());
    if (end > i) {
      const auto next = at->names.find(path.substr(i, end - i));
      if (next == at->names.end()) return nullptr;
      at = next->second;
    }
    i = end + 1;
  }
  return at;
}

memory_files::node_ptr memory_files::folder_of(const std::string& path, int& why) const {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    why = -ENOENT;
    return nullptr;
  }
  node_ptr folder = find(path.substr(0, std::max<std::size_t>(slash, 1)));
  why = folder == nullptr ? -ENOENT : folder->is_folder ? 0 : -ENOTDIR;
  return why == 0 ? folder : nullptr;
}

void memory_files::change(node& n) {
  n.changed_ns = std::max(n.changed_ns + 1, steady_clock::now().time_since_epoch().count());
}

void memory_files::name(const node_ptr& folder, const std::string& path, const node_ptr& what,
                        const std::string& old) {
  const auto before = folder->names.find(last_name(path));
  if (before != folder->names.end()) --before->second->links;
  if (what && old.empty()) ++what->links;
  folder->unsynced_names.push_back({last_name(path), what, old, nullptr});
  node::apply(folder->names, folder->unsynced_names.back());
}

int memory_files::open(const std::string& path, int flags, mode_t /*mode*/) {
  const call c = begin("open", path);
  if (c.refused != 0) return c.refused;
  constexpr std::string_view by_number = "/proc/self/fd/";
  node_ptr found = find(path);
  if (path.starts_with(by_number)) {
    const auto same = open_.find(std::stoi(path.substr(by_number.size())));
    if (same != open_.end()) found = same->second->of;
  }
  if (found && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) return -EEXIST;
  if (!found) {
    if ((flags & O_CREAT) == 0) return -ENOENT;
    int why = 0;
    const node_ptr folder = folder_of(path, why);
    if (!folder) return why;
    found = std::make_shared<node>();
    found->inode = next_inode_++;
    change(*found);
    name(folder, path, found);
  }
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if (found->is_folder && writes) return -EISDIR;
  if (!found->is_folder && (flags & O_DIRECTORY) != 0) return -ENOTDIR;
  if (writes && (flags & O_TRUNC) != 0 && !found->content.empty()) {
    found->content.clear();
    found->unsynced.push_back({0, {}, true});
    change(*found);
  }
  open_[next_fd_] = std::make_shared<descriptor>(descriptor{found, path, flags, current_});
  return next_fd_++;
}

int memory_files::close(int fd) {
  const auto found = open_.find(fd);
  if (found == open_.end()) {
    // A killed process has nothing open; any other that closes twice has a bug.
    if (!dead_.contains(current_)) throw std::logic_error("a descriptor was closed twice");
    return -EBADF;
  }
  // Like the kernel, it closes the descriptor whatever it returns.
  const call c = begin("close", fd);
  forget(fd);
  return c.refused;
}

void memory_files::forget(int fd) {
  const auto found = open_.find(fd);
  const auto last = std::move(found->second);
  open_.erase(found);
  if (last.use_count() > 1) return;
  std::erase_if(last->of->locks, [&](const auto& l) { return l.owner == last.get(); });
  if (last->of->locked_whole_by == last.get()) last->of->locked_whole_by = nullptr;
}

int memory_files::duplicate(int fd) {
  const call c = begin("duplicate", fd);
  if (c.refused != 0) return c.refused;
  open_[next_fd_] = open_[fd];
  return next_fd_++;
}

ssize_t memory_files::read(int fd, std::span<const iovec> into, std::uint64_t at) {
  const call c = begin("read", fd);
  if (c.refused != 0) return c.refused;
  descriptor* const d = c.of;
  if (d->of->is_folder) return -EISDIR;
  if (moves_pieces && random_.below(16) == 0) return random_.below(2) == 0 ? -EINTR : -EAGAIN;
  const std::string& from = d->of->content;
  std::size_t most = from.size() - std::min<std::size_t>(at, from.size());
  if (moves_pieces && most > 1 && random_.below(4) == 0) {
    most = 1 + random_.below(static_cast<std::uint32_t>(most));
  }
  std::size_t done = 0;
  for (const iovec& piece : into) {
    const std::size_t n = std::min(piece.iov_len, most - done);
    if (n > 0) std::memcpy(piece.iov_base, from.data() + at + done, n);
    done += n;
  }
  return static_cast<ssize_t>(done);
}

ssize_t memory_files::write(int fd, std::span<const std::byte> from, std::uint64_t at) {
  const call c = begin("write", fd);
  if (c.refused != 0) return c.refused;
  descriptor* const d = c.of;
  if ((d->flags & O_ACCMODE) == O_RDONLY) return -EBADF;
  std::size_t size = from.size();
  if (moves_pieces && size > 1 && random_.below(4) == 0) {
    size = 1 + random_.below(static_cast<std::uint32_t>(size - 1));
  }
  const std::uint64_t old = d->of->content.size();
  const std::uint64_t grows = at + size > old ? at + size - old : 0;
  if (grows > free_bytes) {
    size = size > grows - free_bytes ? size - static_cast<std::size_t>(grows - free_bytes) : 0;
    if (size == 0) return -ENOSPC;
  }
  free_bytes -= std::min(grows, free_bytes);
  d->of->unsynced.push_back(
      {at, std::string(reinterpret_cast<const char*>(from.data()), size), false});
  node::apply(d->of->content, d->of->unsynced.back(), size);
  change(*d->of);
  return static_cast<ssize_t>(size);
}

ssize_t memory_files::append(int fd, std::span<const std::byte> from) {
  const auto found = open_.find(fd);
  return found == open_.end() ? -EBADF : write(fd, from, found->second->of->content.size());
}

int memory_files::sync(int fd) {
  const call c = begin("sync", fd);
  if (c.refused != 0) return c.refused;
  descriptor* const d = c.of;
  d->of->sync();
  return 0;
}

int memory_files::truncate(int fd, std::uint64_t size) {
  const call c = begin("truncate", fd);
  if (c.refused != 0) return c.refused;
  descriptor* const d = c.of;
  if (d->of->content.size() == size) return 0;
  d->of->content.resize(size);
  d->of->unsynced.push_back({size, {}, true});
  change(*d->of);
  return 0;
}

void memory_files::describe(const node& n, struct stat& to) {
  to = {};
  to.st_dev = makedev(0, 0xFFFFE);
  to.st_ino = n.inode;
  to.st_mode = n.is_folder ? S_IFDIR | 0700 : S_IFREG | 0600;
  to.st_nlink = n.links;
  to.st_uid = geteuid();
  to.st_size = static_cast<off_t>(n.content.size());
  to.st_atim = {.tv_sec = n.used_ns / 1'000'000'000, .tv_nsec = n.used_ns % 1'000'000'000};
  to.st_mtim = {.tv_sec = n.changed_ns / 1'000'000'000, .tv_nsec = n.changed_ns % 1'000'000'000};
}

int memory_files::stat(int fd, struct stat& to) {
  const call c = begin("stat", fd);
  if (c.refused != 0) return c.refused;
  descriptor* const d = c.of;
  describe(*d->of, to);
  return 0;
}

int memory_files::stat_known(int fd, struct stat& to) {
  const call c = begin("stat_known", fd);
  if (c.refused != 0) return c.refused;
  descriptor* const d = c.of;
  describe(*d->of, to);
  return 0;
}

int memory_files::stat(const std::string& path, struct stat& to, bool /*follow*/) {
  const call c = begin("stat", path);
  if (c.refused != 0) return c.refused;
  const node_ptr found = find(path);
  if (!found) return -ENOENT;
  describe(*found, to);
  return 0;
}

int memory_files::set_times(int fd, std::span<const timespec, 2> times) {
  const call c = begin("set_times", fd);
  if (c.refused != 0) return c.refused;
  const std::int64_t now = steady_clock::now().time_since_epoch().count();
  if (times[0].tv_nsec == UTIME_NOW) c.of->of->used_ns = now;
  if (times[1].tv_nsec == UTIME_NOW) change(*c.of->of);
  return 0;
}

int memory_files::rename(const std::string& from, const std::string& to) {
  const call c = begin("rename", to);
  if (c.refused != 0) return c.refused;
  int why = 0;
  const node_ptr here = folder_of(from, why);
  if (!here) return why;
  const node_ptr there = folder_of(to, why);
  if (!there) return why;
  const node_ptr what = find(from);
  if (!what) return -ENOENT;
  const node_ptr old = find(to);
  if (old == what) return 0;
  if (old && old->is_folder && (!what->is_folder || !old->names.empty())) return -ENOTEMPTY;
  name(there, to, what, here == there ? last_name(from) : "");
  if (here == there) return 0;
  name(here, from, nullptr);
  const auto both = std::make_shared<std::optional<bool>>();
  there->unsynced_names.back().both = here->unsynced_names.back().both = both;
  return 0;
}

int memory_files::exchange(const std::string& one, const std::string& other) {
  const call c = begin("exchange", other);
  if (c.refused != 0) return c.refused;
  if (!exchanges) return -EINVAL;
  int why = 0;
  const node_ptr folder = folder_of(one, why);
  if (!folder) return why;
  if (folder != folder_of(other, why)) throw std::logic_error("names of two folders exchanged");
  const node_ptr first = find(one);
  const node_ptr second = find(other);
  if (!first || !second) return -ENOENT;
  folder->unsynced_names.push_back({last_name(other), first, last_name(one), second});
  node::apply(folder->names, folder->unsynced_names.back());
  return 0;
}

int memory_files::link(const std::string& from, const std::string& to) {
  const call c = begin("link", to);
  if (c.refused != 0) return c.refused;
  int why = 0;
  const node_ptr there = folder_of(to, why);
  if (!there) return why;
  const node_ptr what = find(from);
  if (!what) return -ENOENT;
  if (find(to)) return -EEXIST;
  name(there, to, what);
  return 0;
}

int memory_files::unlink(const std::string& path) {
  const call c = begin("unlink", path);
  if (c.refused != 0) return c.refused;
  const node_ptr found = find(path);
  if (!found) return -ENOENT;
  if (found->is_folder) return -EISDIR;
  int why = 0;
  name(folder_of(path, why), path, nullptr);
  return 0;
}

int memory_files::make_folder(const std::string& path, mode_t /*mode*/) {
  const call c = begin("make_folder", path);
  if (c.refused != 0) return c.refused;
  if (find(path)) return -EEXIST;
  int why = 0;
  const node_ptr parent = folder_of(path, why);
  if (!parent) return why;
  const auto made = std::make_shared<node>();
  made->is_folder = true;
  made->inode = next_inode_++;
  name(parent, path, made);
  return 0;
}

int memory_files::remove_folder(const std::string& path) {
  const call c = begin("remove_folder", path);
  if (c.refused != 0) return c.refused;
  const node_ptr found = find(path);
  if (!found) return -ENOENT;
  if (!found->is_folder) return -ENOTDIR;
  if (!found->names.empty()) return -ENOTEMPTY;
  int why = 0;
  name(folder_of(path, why), path, nullptr);
  return 0;
}

int memory_files::list(const std::string& folder, std::vector<std::string>& names) {
  const call c = begin("list", folder);
  if (c.refused != 0) return c.refused;
  const node_ptr found = find(folder);
  if (!found) return -ENOENT;
  if (!found->is_folder) return -ENOTDIR;
  for (const auto& [one, what] : found->names) names.push_back(one);
  return 0;
}

int memory_files::room(const std::string& path, struct statvfs& to) {
  const call c = begin("room", path);
  if (c.refused != 0) return c.refused;
  to = {};
  to.f_frsize = to.f_bsize = 4096;
  to.f_bavail = to.f_bfree = free_bytes / to.f_frsize;
  return 0;
}

std::size_t memory_files::open_descriptors(int process) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(open_, [&](const auto& d) { return d.second->process == process; }));
}

bool memory_files::exists(const std::string& path) const {
  return find(path) != nullptr;
}

std::string memory_files::content(const std::string& path) const {
  const node_ptr found = find(path);
  return found ? found->content : std::string();
}

std::vector<std::string> memory_files::paths() const {
  std::vector<std::string> out;
  const auto look = [&](const auto& self, const node& folder, const std::string& path) -> void {
    for (const auto& [name, what] : folder.names) {
      what->is_folder ? self(self, *what, path + name + "/") : out.push_back(path + name);
    }
  };
  look(look, *root_, "/");
  return out;
}

void memory_files::put(const std::string& path, std::string content,
                       std::optional<std::int64_t> changed_ns) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    make_folder(path.substr(0, slash), 0700);
  }
  int why = 0;
  const node_ptr folder = folder_of(path, why);
  const auto made = std::make_shared<node>();
  made->inode = next_inode_++;
  made->content = std::move(content);
  made->sync();
  change(*made);
  if (changed_ns) made->changed_ns = *changed_ns;
  name(folder, path, made);
  for (std::size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    find(path.substr(0, slash))->sync();
  }
  root_->sync();
}

void memory_files::rot(const std::string& path, std::uint64_t at) {
  find(path)->content.at(at) = static_cast<char>(find(path)->content.at(at) ^ 0x20);
}

}  // namespace millrace::testing
