#pragma once

#include <memory>

#include "io/disks/disk.h"
#include "io/files/read_window.h"
#include "io/source.h"

namespace millrace {

// Reads a range of one file ahead of its consumer, chunk by chunk, into `window`.
//
// On a device without a gate, two chunks at a time, as many as the device's depth allows, and twice
// as many each time that the consumer has to wait, up to options.read_ahead. On a gated device, an
// extent at a time: acquires the extent's memory before it asks for the turn, gives all chunks to
// the device at once, and passes the turn on when only its last few milliseconds are left, so that
// the device never waits.
class file_reader : public std::enable_shared_from_this<file_reader> {
 public:
  file_reader(source_context context, std::shared_ptr<readable_file> from, std::uint64_t offset,
              std::uint64_t end, std::shared_ptr<read_window> window,
              std::shared_ptr<memory_holder> keeps = nullptr);

  // Reads to the end of the range, or to the first error, which it puts into the window.
  awaitable<void> run();

 private:
  class turn;
  class place;
  struct piece {
    std::uint64_t offset;  // a multiple of the file's alignment
    std::size_t skipped;   // bytes at the front that were not asked for
    std::size_t size;
  };
  piece next_piece();
  awaitable<result<void>> read_one();
  awaitable<result<void>> read_extent();
  awaitable<result<memory_reservation>> memory_for_extent();
  awaitable<void> prepare_cache(std::uint64_t from, std::size_t size);
  void start(const piece& what, buffer into, std::unique_ptr<place> at, bool apart);
  static awaitable<void> read_chunk(std::shared_ptr<file_reader> self,
                                    std::shared_ptr<read_window::chunk> chunk, piece what,
                                    buffer into, std::unique_ptr<place> at, bool apart);
  error shrank(std::uint64_t at) const;
  void drop_cache(std::uint64_t up_to);

  source_context context_;
  std::shared_ptr<readable_file> from_;
  std::shared_ptr<disk> device_;
  std::shared_ptr<open_file> file_;
  std::size_t chunk_;  // whole pages, so every chunk but the first begins aligned
  std::uint64_t offset_;
  std::uint64_t end_;
  std::uint64_t dropped_to_;
  std::shared_ptr<read_window> window_;
  std::size_t most_ahead_;
  std::size_t ahead_;                     // chunks that the window may have now, without a gate
  std::shared_ptr<memory_holder> keeps_;  // the consumer, if it keeps bytes that it was given
};

}  // namespace millrace
