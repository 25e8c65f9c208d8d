#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace millrace {

// Which shard each key was first seen in, within a bound of memory: 96 bits of a key are kept, and
// not the key. Two different keys are taken for one with a probability below 1e-10 among 1e9.
class key_table {
 public:
  // `most_bytes`: of the table, and of both where it grows.
  explicit key_table(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  // The shard that the key was in first; nullopt: it is new, and in the table from now on, unless
  // that is full.
  std::optional<std::uint32_t> first_shard(std::string_view key, std::uint32_t shard);
  // Keys beyond those in the table are not looked for.
  bool is_full() const { return is_full_; }
  std::size_t size() const { return size_; }

 private:
  struct entry {
    std::uint64_t high = 0;
    std::uint32_t low = 0;
    std::uint32_t shard = free_place;
  };
  static constexpr std::uint32_t free_place = ~std::uint32_t{0};

  entry& place_of(std::uint64_t high, std::uint32_t low);
  bool grow();

  std::size_t most_bytes_;
  std::vector<entry> entries_;  // a power of two of them
  std::size_t size_ = 0;
  bool is_full_ = false;
};

}  // namespace millrace
