#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/files/file_system.h"

namespace millrace {

// The mark by which a cache recognises its files among those of other programs, which may have
// similar names: at the end of a complete entry, and at the start of sums.
inline constexpr std::string_view cache_mark = "mrcache1";

// Opens a file of a cache's folder with `flags`, never through a link. Opens only a plain file of
// this user that no other user may write to. With O_CREAT, any other file is removed: the caller
// derived the name from the content, so it belongs to the cache. Fails with not_found (ENOENT),
// no_descriptors, not_allowed (EACCES, or another user's file) or io_failed.
result<held_file> open_own(const std::string& path, int flags);

// Whether the open file has the mark at its start or end.
bool begins_with_mark(int fd);
bool ends_with_mark(int fd);

// Whether `path` is a name of the open file.
bool is_named(const std::string& path, int fd);
// Removes `path` if it is a name of the open file, not of one that has replaced it.
void remove_name(const std::string& path, int fd);

// Open file description locks, fcntl(2), on the bytes from `from` to the end.
bool lock_file(int fd, short kind, std::uint64_t from = 0);
void unlock_front(int fd, std::uint64_t bytes);
// The first byte on which another holder has a writer's lock.
std::optional<std::uint64_t> locked_from(int fd);

// Reads all `size` bytes; returns false if it cannot.
bool read_exactly(int fd, void* into, std::size_t size, std::uint64_t at);
// Returns 0, or errno.
int write_exactly(int fd, std::span<const std::byte> data, std::uint64_t at);

template <class T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace millrace
