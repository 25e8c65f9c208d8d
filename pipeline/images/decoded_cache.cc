#include "pipeline/images/decoded_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/memory.h"

namespace millrace {
namespace {

// A file without a name, of that size, whose blocks are there: writing to its memory cannot fail.
int nameless_file(const std::string& folder, std::size_t bytes) {
  std::string path = folder + "/millrace-decoded-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    throw failure(error(errc::io_failed, "cannot make a file for decoded images")
                      .at(folder)
                      .cause(errno)
                      .hint("name a folder on a local file system"));
  }
  unlink(path.c_str());
  const int failed = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (failed == 0) return fd;
  close(fd);
  throw failure(
      error(errc::io_failed, fmt::format("no room for {} MB of decoded images", bytes / 1'000'000))
          .at(folder)
          .cause(failed)
          .hint("ask for less, or name another folder"));
}

}  // namespace

decoded_cache::decoded_cache(decoded_cache_options options) : options_(std::move(options)) {
  if (options_.bytes == 0) return;
  const bool on_disk = !options_.folder.empty();
  if (!on_disk && options_.bytes > allowed_memory_bytes()) {
    throw failure(error(errc::usage,
                        fmt::format("{} MB of decoded images, where {} MB of memory "
                                    "are allowed",
                                    options_.bytes / 1'000'000, allowed_memory_bytes() / 1'000'000))
                      .hint("ask for less, or keep them on disk"));
  }
  const int fd = on_disk ? nameless_file(options_.folder, options_.bytes) : -1;
  const int flags = on_disk ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, options_.bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  const int failed = errno;
  if (fd >= 0) close(fd);
  if (memory == MAP_FAILED) {
    throw failure(error(errc::no_memory, "cannot map memory for decoded images").cause(failed));
  }
  memory_ = static_cast<std::byte*>(memory);
}

decoded_cache::~decoded_cache() {
  if (memory_ != nullptr) munmap(memory_, options_.bytes);
}

decoded_cache::place decoded_cache::place_of(const sample& s) {
  return {s.url ? std::hash<std::string>()(*s.url) : 0, s.where.offset};
}

std::optional<decoded_cache::picture> decoded_cache::find(const sample& s) {
  const std::scoped_lock lock(mutex_);
  const auto found = pictures_.find(place_of(s));
  if (found == pictures_.end()) return std::nullopt;
  ++hits_;
  return found->second;
}

bool decoded_cache::has_room(std::size_t bytes) const {
  const std::size_t used = used_.load(std::memory_order_relaxed);
  return bytes <= options_.bytes && used <= options_.bytes - bytes;
}

std::optional<decoded_cache::picture> decoded_cache::add(const sample& s, const picture& p,
                                                         std::size_t file_bytes) {
  const std::size_t at = used_.fetch_add(p.rgb.size(), std::memory_order_relaxed);
  if (at > options_.bytes || p.rgb.size() > options_.bytes - at) {
    used_.fetch_sub(p.rgb.size(), std::memory_order_relaxed);
    return std::nullopt;
  }
  std::memcpy(memory_ + at, p.rgb.data(), p.rgb.size());
  picture kept = p;
  kept.rgb = {memory_ + at, p.rgb.size()};
  const std::scoped_lock lock(mutex_);
  if (pictures_.try_emplace(place_of(s), kept).second) file_bytes_ += file_bytes;
  return kept;
}

std::string decoded_cache::summary() const {
  const std::scoped_lock lock(mutex_);
  const auto used = static_cast<double>(used_.load());
  return fmt::format("{} decoded images in {:.1f} MB, {:.1f} times their files; {} more do not fit",
                     pictures_.size(), used / 1e6,
                     used / std::max(1.0, static_cast<double>(file_bytes_)), not_kept_.load());
}

}  // namespace millrace
