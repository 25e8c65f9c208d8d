#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "pipeline/images/image_decoder.h"
#include "pipeline/sample.h"

namespace millrace {

struct decoded_cache_options {
  std::size_t bytes = 0;  // at most, beside the budget of MILLRACE_MEMORY
  std::string folder;     // of a file that vanishes with the process; empty: in memory
  // Images are kept with this shorter side, if theirs is longer: smaller and quicker, but outputs
  // are no longer those of the stored images. 0: whole.
  int resize = 0;
};

// Keeps decoded images, so that later epochs only cut and resample them. They take four to eight
// times the bytes of their JPEGs; what does not fit is decoded each time, and nothing is thrown out
// for what comes later: of a set that is read again and again, as much as fits is always there. Any
// thread.
class decoded_cache {
 public:
  // Throws `failure`: usage where memory is less than that, io_failed where the folder has no room.
  explicit decoded_cache(decoded_cache_options options);
  ~decoded_cache();
  decoded_cache(const decoded_cache&) = delete;
  decoded_cache& operator=(const decoded_cache&) = delete;

  struct picture {
    std::span<const std::byte> rgb;  // width x height x 3 bytes, while the cache lives
    int width = 0;
    int height = 0;
    int warnings = 0;  // of its decoder
  };
  std::optional<picture> find(const sample& s);
  bool has_room(std::size_t bytes) const;
  // Copies it. Nothing where there is no room any more.
  std::optional<picture> add(const sample& s, const picture& p, std::size_t file_bytes);
  void count_not_kept() { ++not_kept_; }

  const decoded_cache_options& options() const { return options_; }
  // "700 decoded images in 393.4 MB, 5.2 times their files; 0 more do not fit".
  std::string summary() const;
  std::uint64_t hits() const { return hits_; }

 private:
  struct place {
    std::uint64_t url = 0;  // its hash
    std::int64_t offset = 0;
    bool operator==(const place&) const = default;
  };
  struct hash {
    std::size_t operator()(const place& p) const {
      return static_cast<std::size_t>(p.url ^
                                      (static_cast<std::uint64_t>(p.offset) * 0x9E3779B97F4A7C15U));
    }
  };
  static place place_of(const sample& s);

  decoded_cache_options options_;
  std::byte* memory_ = nullptr;
  std::atomic<std::size_t> used_{0};
  std::atomic<std::uint64_t> hits_{0};
  std::atomic<std::uint64_t> not_kept_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<place, picture, hash> pictures_;
  std::uint64_t file_bytes_ = 0;
};

// For decode_options.cache: one may serve several plans, one after the other or side by side.
inline std::shared_ptr<decoded_cache> cache_decoded(decoded_cache_options options) {
  return std::make_shared<decoded_cache>(std::move(options));
}

}  // namespace millrace
