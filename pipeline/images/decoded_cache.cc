#include "pipeline/images/decoded_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "engine/base/check_option.h"
#include "engine/base/process_wide.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/host.h"
#include "engine/memory/work_memory.h"
#include "io/hashes.h"

namespace millrace {
namespace {

// Creates an unlinked file with `bytes` bytes allocated. It is accessed by pread and pwrite: a disk
// error in mapped memory would end the process.
int nameless_file(const std::string& folder, std::size_t bytes) {
  std::string path = folder + "/millrace-decoded-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    throw failure(error(kind_of(errno), "cannot make a file for decoded images")
                      .at(folder)
                      .cause(errno)
                      .hint("name a folder on a local file system"));
  }
  unlink(path.c_str());
  const int failed = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (failed == 0) return fd;
  close(fd);
  throw failure(
      error(kind_of(failed), fmt::format("no room for {} of decoded images", format_bytes(bytes)))
          .at(folder)
          .cause(failed)
          .hint("ask for less, or use another folder"));
}

// Hashes every option that affects the pixels. A member added to image_options fails to compile
// here.
std::uint64_t hash_of(const image_options& o) {
  const auto& [limits, filter, lenient, fill_truncated, orient, runs, own_huffman, fast, raw_width,
               raw_height] = o;
  const auto& [max_pixels, max_scans, max_held_bytes, max_cpu_seconds] = limits;
  return std::hash<std::string>()(
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", max_pixels, max_scans, max_held_bytes,
                  max_cpu_seconds, static_cast<int>(filter), lenient, fill_truncated, orient, runs,
                  own_huffman, fast, raw_width, raw_height));
}

// The place of an image's pixels in the cache.
struct entry {
  std::size_t at = 0;
  std::size_t bytes = 0;
  int width = 0;
  int height = 0;
  int warnings = 0;
};

struct hash_of_place {
  std::size_t operator()(const decoded_cache::place& p) const {
    const std::uint64_t all = p.url ^ p.field ^ (p.how << 1U) ^ p.crc;
    return static_cast<std::size_t>(all ^
                                    (static_cast<std::uint64_t>(p.offset) * 0x9E3779B97F4A7C15U));
  }
};

}  // namespace

struct decoded_cache::kept {
  home_process process;
  std::mutex mutex;
  // Guarded by mutex.
  std::unordered_map<place, entry, hash_of_place> pictures;
  std::uint64_t file_bytes = 0;
};

decoded_cache::decoded_cache(decoded_cache_options options)
    : options_(std::move(options)), kept_(std::make_unique<kept>()) {
  check_option("decoded_cache_options.resize", options_.resize, 0,
               decoded_cache_options::most_resize);
  if (options_.bytes == 0) return;
  if (options_.bytes < page_bytes) {
    throw failure(
        error(errc::usage, fmt::format("{} hold no decoded image", counted(options_.bytes, "byte")))
            .hint(
                "write the size with its unit, such as 8G; decoded_cache_options.bytes takes it"));
  }
  const bool on_disk = !options_.folder.empty();
  if (!on_disk && options_.bytes > allowed_memory_bytes()) {
    throw failure(error(errc::usage,
                        fmt::format("{} MB of decoded images, but only {} MB of memory "
                                    "are allowed",
                                    options_.bytes / 1'000'000, allowed_memory_bytes() / 1'000'000))
                      .hint("lower decoded_cache_options.bytes, or keep them on disk "
                            "(decoded_cache_options.folder)"));
  }
  if (on_disk) {
    file_ = nameless_file(options_.folder, options_.bytes);
    return;
  }
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, options_.bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) {
    throw failure(error(kind_of(errno), "cannot map memory for decoded images").cause(errno));
  }
  memory_ = static_cast<std::byte*>(memory);
}

decoded_cache::~decoded_cache() {
  if (memory_ != nullptr) munmap(memory_, options_.bytes);
  if (file_ >= 0) close(file_);
}

decoded_cache::place decoded_cache::place_of(const sample& s, const field& file,
                                             const image_options& how) {
  return {.url = s.url ? std::hash<std::string>()(*s.url) : 0,
          .offset = s.where.offset,
          .field = std::hash<std::string>()(file.extension),
          .how = hash_of(how),
          .bytes = file.data.size(),
          .crc = crc32c(file.data.span())};
}

bool decoded_cache::write(std::size_t at, std::span<const std::byte> rgb) {
  if (memory_ != nullptr) std::memcpy(memory_ + at, rgb.data(), rgb.size());
  while (memory_ == nullptr && !rgb.empty()) {
    const ssize_t done = pwrite(file_, rgb.data(), rgb.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += static_cast<std::size_t>(done);
    rgb = rgb.subspan(static_cast<std::size_t>(done));
  }
  return true;
}

bool decoded_cache::read(std::size_t at, std::span<std::uint8_t> rgb) const {
  while (!rgb.empty()) {
    const ssize_t done = pread(file_, rgb.data(), rgb.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += static_cast<std::size_t>(done);
    rgb = rgb.subspan(static_cast<std::size_t>(done));
  }
  return true;
}

std::optional<decoded_cache::picture> decoded_cache::find(const place& where,
                                                          std::vector<std::uint8_t>& room) {
  if (!kept_->process.is_this()) return std::nullopt;
  entry found;
  {
    const std::scoped_lock lock(kept_->mutex);
    const auto it = kept_->pictures.find(where);
    if (it == kept_->pictures.end()) return std::nullopt;
    found = it->second;
  }
  picture out{.rgb = {}, .width = found.width, .height = found.height, .warnings = found.warnings};
  if (memory_ != nullptr) {
    out.rgb = {memory_ + found.at, found.bytes};
  } else {
    if (!take_work_memory(found.bytes)) return std::nullopt;
    room.resize(found.bytes);
    if (!read(found.at, room)) {
      ++failed_;
      const std::scoped_lock lock(kept_->mutex);
      kept_->pictures.erase(where);
      return std::nullopt;
    }
    out.rgb = std::as_bytes(std::span(room));
  }
  ++hits_;
  return out;
}

void decoded_cache::add(const place& where, const picture& p) {
  if (!kept_->process.is_this()) return count_not_kept();
  // Space is only ever taken: it cannot be given back, because other threads may have taken what
  // follows.
  std::size_t at = used_.load(std::memory_order_relaxed);
  do {
    if (p.rgb.size() > options_.bytes - at) return count_not_kept();
  } while (!used_.compare_exchange_weak(at, at + p.rgb.size(), std::memory_order_relaxed));
  if (!write(at, p.rgb)) {
    ++failed_;
    return;
  }
  const entry of{.at = at,
                 .bytes = p.rgb.size(),
                 .width = p.width,
                 .height = p.height,
                 .warnings = p.warnings};
  const std::scoped_lock lock(kept_->mutex);
  if (kept_->pictures.try_emplace(where, of).second) kept_->file_bytes += where.bytes;
}

std::string decoded_cache::summary() const {
  if (!kept_->process.is_this()) return "the decoded images belong to the parent process";
  const std::scoped_lock lock(kept_->mutex);
  const auto used = static_cast<double>(used_.load());
  std::string out =
      fmt::format("{} decoded images in {}, {:.1f} times their files; {} more do not fit",
                  kept_->pictures.size(), format_bytes(used_.load()),
                  used / std::max(1.0, static_cast<double>(kept_->file_bytes)), not_kept_.load());
  if (failed_ > 0) {
    out += fmt::format(
        "; {} could not be written or read again, and are decoded each time: the disk "
        "of {} fails",
        failed_.load(), options_.folder);
  }
  return out;
}

}  // namespace millrace
