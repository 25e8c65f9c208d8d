// Locks of memory_files: of ranges, and of whole files.
#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "tests/support/memory_files.h"
#include "tests/support/memory_node.h"

namespace millrace::testing {

int memory_files::lock(int fd, struct flock range) {
  const call c = begin("lock", fd);
  if (c.refused != 0) return c.refused;
  descriptor* const d = c.of;
  struct flock asked = range;
  if (range.l_type != F_UNLCK) {
    find_lock(fd, asked);
    if (asked.l_type != F_UNLCK) return -EAGAIN;
  }
  const std::int64_t end = range.l_len == 0 ? INT64_MAX : range.l_start + range.l_len;
  auto& locks = d->of->locks;
  std::vector<node::held_lock> others;
  for (const node::held_lock& l : std::exchange(locks, {})) {
    if (l.owner != d || l.end <= range.l_start || end <= l.begin) {
      others.push_back(l);
      continue;
    }
    if (l.begin < range.l_start) others.push_back({d, l.exclusive, l.begin, range.l_start});
    if (end < l.end) others.push_back({d, l.exclusive, end, l.end});
  }
  locks = std::move(others);
  if (range.l_type != F_UNLCK) locks.push_back({d, range.l_type == F_WRLCK, range.l_start, end});
  return 0;
}

int memory_files::find_lock(int fd, struct flock& range) {
  const unhooked here;
  const auto found = open_.find(fd);
  if (found == open_.end()) return -EBADF;
  const descriptor* const d = found->second.get();
  const std::int64_t end = range.l_len == 0 ? INT64_MAX : range.l_start + range.l_len;
  const bool exclusive = range.l_type == F_WRLCK;
  const auto& locks = d->of->locks;
  const auto in_the_way = std::ranges::find_if(locks, [&](const node::held_lock& l) {
    return l.owner != d && (exclusive || l.exclusive) && l.begin < end && range.l_start < l.end;
  });
  if (in_the_way != locks.end()) range.l_start = in_the_way->begin;
  range.l_type = static_cast<short>(in_the_way == locks.end() ? F_UNLCK
                                    : in_the_way->exclusive   ? F_WRLCK
                                                              : F_RDLCK);
  return 0;
}

int memory_files::lock_whole(int fd) {
  const call c = begin("lock_whole", fd);
  if (c.refused != 0) return c.refused;
  const descriptor*& owner = c.of->of->locked_whole_by;
  if (owner != nullptr && owner != c.of) return -EWOULDBLOCK;
  owner = c.of;
  return 0;
}

}  // namespace millrace::testing
