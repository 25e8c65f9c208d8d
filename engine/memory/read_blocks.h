#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/memory/memory.h"

namespace millrace {

// Allocates the buffers of file reads from arenas, which are mapped once and never unmapped, so
// that a ring can pin them (io_uring's registered buffers) without ever meeting another mapping at
// an old address. An arena is a row of blocks of one size; blocks are whole huge pages if the size
// allows. A request that no arena can serve gets its own mapping.
//
// Thread-safe.
class read_block_allocator final : public host_allocator {
 public:
  static read_block_allocator& instance();

  std::byte* allocate(std::size_t size) override;
  void release(std::byte* data, std::size_t size) noexcept override;

  // All arenas from index `first` on, in order of creation.
  std::vector<std::span<std::byte>> arenas(std::size_t first) const;

  static constexpr std::size_t arena_bytes = 32_MiB;

 private:
  struct row {
    std::size_t block_bytes;
    std::vector<std::byte*> free;  // the most recently freed last
  };
  row& row_of(std::size_t size);

  mutable std::mutex mutex_;
  std::vector<std::span<std::byte>> arenas_;
  std::vector<row> rows_;
};

}  // namespace millrace
