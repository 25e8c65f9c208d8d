#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/images/options.h"
#include "pipeline/sample.h"

namespace millrace {

struct decoded_cache_options {
  std::size_t bytes = 0;    // at most, in addition to MILLRACE_MEMORY
  std::string folder = {};  // of a file that vanishes with the process; empty: in memory
  // Images are kept with this shorter side, if theirs is longer: smaller and quicker, but outputs
  // are no longer those of the stored images. 0: whole.
  int resize = 0;
};

// Keeps decoded images, so that later epochs only cut and resample them. They take four to eight
// times the bytes of their JPEGs; images that do not fit are decoded each time, and nothing is
// evicted: of a set that is read repeatedly, as much as fits stays cached. Plans that read other
// fields, decode in another way or change the files before never meet. Any thread. In a forked
// child it gives and keeps nothing.
class decoded_cache {
 public:
  // Throws `failure`: usage where memory is less than that or no image fits, io_failed where the
  // folder has no room.
  explicit decoded_cache(decoded_cache_options options);
  ~decoded_cache();
  decoded_cache(const decoded_cache&) = delete;
  decoded_cache& operator=(const decoded_cache&) = delete;

  struct picture {
    // width x height x 3 bytes: of a cache in memory while it lives, else of the caller's `room`.
    std::span<const std::byte> rgb;
    int width = 0;
    int height = 0;
    int warnings = 0;  // of its decoder
  };
  // The key of a picture: the origin of its file, the field, the file's bytes, and the way it is
  // decoded.
  struct place {
    std::uint64_t url = 0;  // its hash
    std::int64_t offset = 0;
    std::uint64_t field = 0;  // the hash of its name
    std::uint64_t how = 0;    // the hash of the options
    std::size_t bytes = 0;
    std::uint32_t crc = 0;
    bool operator==(const place&) const = default;
  };
  // Reads the file once. Pure.
  static place place_of(const sample& s, const field& file, const image_options& how);

  // Reads pixels that are on disk into `room`, which counts as work memory. One that cannot be read
  // is forgotten, and counted.
  std::optional<picture> find(const place& where, std::vector<std::uint8_t>& room);
  // Copies it; where there is no room left, it is counted, and where it cannot be written.
  void add(const place& where, const picture& p);
  void count_not_kept() { ++not_kept_; }

  const decoded_cache_options& options() const { return options_; }
  // "700 decoded images in 393.4 MB, 5.2 times their files; 0 more do not fit", and how many could
  // not be read or written again, if any.
  std::string summary() const;
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

// For decode_options.cache: one may serve several plans, one after the other or side by side.
inline std::shared_ptr<decoded_cache> cache_decoded(decoded_cache_options options) {
  return std::make_shared<decoded_cache>(std::move(options));
}

}  // namespace millrace
