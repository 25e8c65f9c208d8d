#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/file_system.h"
#include "engine/result.h"

namespace millrace {

// What a cache writes into its files, by which they are known among those of other programs, which
// may have names like theirs: at the end of a complete entry, and at the front of sums.
inline constexpr std::string_view cache_mark = "mrcache1";

// A file of a cache's folder, opened by `flags` and never through a link. What is not a plain file
// of this user that nobody else may write to is not opened; with O_CREAT, by who has the name from
// what it is to hold, it is removed. Fails with not_found (ENOENT), no_descriptors, not_allowed
// (EACCES, or another's file) or io_failed.
result<held_file> open_own(const std::string& path, int flags);

// Whether the open file has the mark there.
bool begins_with_mark(int fd);
bool ends_with_mark(int fd);

// Whether `path` is a name of the open file.
bool is_named(const std::string& path, int fd);
// Removes `path` where it is a name of the open file, and not of one that has come in its place.
void remove_name(const std::string& path, int fd);

// Open file description locks, fcntl(2), on the bytes from `from` on.
bool lock_file(int fd, short kind, std::uint64_t from = 0);
void unlock_front(int fd, std::uint64_t bytes);
// The first byte that another holds a writer's lock on.
std::optional<std::uint64_t> locked_from(int fd);

// All of it, or false.
bool read_exactly(int fd, void* into, std::size_t size, std::uint64_t at);
// 0, or errno.
int write_exactly(int fd, std::span<const std::byte> data, std::uint64_t at);

template <class T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace millrace
