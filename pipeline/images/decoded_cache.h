#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/pixels/options.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// Options of a decoded_cache.
struct decoded_cache_options {
  std::size_t bytes = 0;    // at most, in addition to the budget; 0: nothing is kept
  std::string folder = {};  // for a file that vanishes with the process; empty: in memory
  static constexpr int most_resize = 1 << 15;  // of `resize`, in pixels
  // Keeps images with this shorter side if theirs is longer: smaller and quicker, but outputs then
  // differ from those of the stored images. At most most_resize; 0: full size.
  int resize = 0;
};

// Keeps decoded images, so that later epochs only crop and resample them. They take four to eight
// times the bytes of their JPEGs. Images that do not fit are decoded each time, and nothing is
// evicted: of a set that is read repeatedly, as much as fits stays cached. Plans that read other
// fields, decode in another way or change the files before share no entries. Any thread. In a
// forked child it gives and keeps nothing.
class decoded_cache {
 public:
  // Reserves the memory or the file. Throws `failure`: usage if the host allows less memory than
  // that or no image fits, io_failed if the folder has no room, no_memory if the host refuses.
  explicit decoded_cache(decoded_cache_options options);
  ~decoded_cache();
  decoded_cache(const decoded_cache&) = delete;
  decoded_cache& operator=(const decoded_cache&) = delete;

  // A decoded image.
  struct picture {
    // width x height x 3 bytes: of a cache in memory while that lives, else of the caller's `room`.
    std::span<const std::byte> rgb;
    int width = 0;     // in pixels
    int height = 0;    // in pixels
    int warnings = 0;  // of its decoder
  };
  // The key of a picture: the origin of its file, the field, the file's bytes, and the way it is
  // decoded.
  struct place {
    std::uint64_t url = 0;    // its hash
    std::int64_t offset = 0;  // origin::offset of the sample
    std::uint64_t field = 0;  // the hash of its name
    std::uint64_t how = 0;    // the hash of the options
    std::size_t bytes = 0;    // of the file
    std::uint32_t crc = 0;    // CRC-32C of the file
    bool operator==(const place&) const = default;
  };
  // The key of an image: reads its file once. Pure.
  static place place_of(const sample& s, const field& file, const image_options& how);

  // The image, or nullopt if it is not kept. Pixels that are on disk are read into `room`, which
  // counts as work memory; an image that cannot be read is forgotten, and counted.
  std::optional<picture> find(const place& where, std::vector<std::uint8_t>& room);
  // Keeps a copy of an image. Counts it instead if there is no room left, or if it cannot be
  // written.
  void add(const place& where, const picture& p);
  // Counts an image that the caller does not add.
  void count_not_kept() { ++not_kept_; }

  // The options that the cache was made with.
  const decoded_cache_options& options() const { return options_; }
  // "700 decoded images in 393.4 MB, 5.2 times their files; 0 more do not fit", with the number of
  // those that could not be read or written, if any.
  std::string summary() const;
  // The number of find() calls that found an image.
  std::uint64_t hits() const { return hits_; }

 private:
  struct kept;
  bool write(std::size_t at, std::span<const std::byte> rgb);
  bool read(std::size_t at, std::span<std::uint8_t> rgb) const;

  decoded_cache_options options_;
  std::byte* memory_ = nullptr;  // null: on disk
  int file_ = -1;
  std::atomic<std::size_t> used_{0};
  std::atomic<std::uint64_t> hits_{0};
  std::atomic<std::uint64_t> not_kept_{0};
  std::atomic<std::uint64_t> failed_{0};
  std::unique_ptr<kept> kept_;
};

// A cache for decode_options::cache. It may serve several plans, one after the other or at once.
inline std::shared_ptr<decoded_cache> cache_decoded(decoded_cache_options options) {
  return std::make_shared<decoded_cache>(std::move(options));
}

}  // namespace millrace
