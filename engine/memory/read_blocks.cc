#include "engine/memory/read_blocks.h"

#include <algorithm>

#include "engine/base/process_wide.h"
#include "engine/base/units.h"

namespace millrace {
namespace {

// Sizes that arenas are divided into. Few, because memory stays with its size.
constexpr std::size_t least_block = 64_KiB;

bool fits_an_arena(std::size_t size) {
  return size >= least_block && size <= read_block_allocator::arena_bytes &&
         read_block_allocator::arena_bytes % size == 0;
}

}  // namespace

read_block_allocator& read_block_allocator::instance() {
  return process_wide<read_block_allocator>();
}

read_block_allocator::row& read_block_allocator::row_of(std::size_t size) {
  const auto found = std::ranges::find(rows_, size, &row::block_bytes);
  return found != rows_.end() ? *found : rows_.emplace_back(row{.block_bytes = size, .free = {}});
}

std::byte* read_block_allocator::allocate(std::size_t size) {
  if (!fits_an_arena(size)) return default_host_allocator().allocate(size);
  const std::scoped_lock lock(mutex_);
  row& r = row_of(size);
  if (r.free.empty()) {
    std::byte* made = default_host_allocator().allocate(arena_bytes);
    arenas_.emplace_back(made, arena_bytes);
    for (std::size_t at = arena_bytes; at > 0; at -= size) r.free.push_back(made + at - size);
  }
  std::byte* block = r.free.back();
  r.free.pop_back();
  return block;
}

void read_block_allocator::release(std::byte* data, std::size_t size) noexcept {
  if (!fits_an_arena(size)) return default_host_allocator().release(data, size);
  const std::scoped_lock lock(mutex_);
  row_of(size).free.push_back(data);
}

std::vector<std::span<std::byte>> read_block_allocator::arenas(std::size_t first) const {
  const std::scoped_lock lock(mutex_);
  return {arenas_.begin() + static_cast<std::ptrdiff_t>(std::min(first, arenas_.size())),
          arenas_.end()};
}

}  // namespace millrace
