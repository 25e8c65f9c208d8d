#pragma once

#include <memory>

#include "io/disks/disk.h"
#include "io/source.h"

namespace millrace {

// Opens a file, finds its device, and decides whether it is read past the page cache.
awaitable<result<std::shared_ptr<readable_file>>> open_readable(std::shared_ptr<disk_table> disks,
                                                                const source_context& context,
                                                                std::string path);
// The bytes [offset, end) of the file, read ahead; `end` is at most its size. `keeps`: the reader,
// if it keeps bytes of context.memory while it waits for more.
std::unique_ptr<byte_source> read_range(source_context context, std::shared_ptr<readable_file> from,
                                        std::uint64_t offset, std::uint64_t end,
                                        std::shared_ptr<memory_holder> keeps = nullptr);

// Regular files, read ahead through the I/O thread's block_io (io/files/file_reader.h). A file's
// size is taken when it is opened; if it shrinks afterwards, that is an error (`changed`).
source_factory file_source_factory(const std::shared_ptr<disk_table>& disks);

// Standard input: read as a file if it is one, otherwise as a pipe, to its end, once in the
// process. Opening a pipe again fails with `unsupported`.
source_factory stdin_source_factory(const std::shared_ptr<disk_table>& disks);

// The bytes that the page cache may hold: three quarters of the free memory.
std::uint64_t page_cache_room();

// The memory that one open file needs: two chunks, and two extents if its device has a gate.
source_memory file_memory(const source_options& options, const std::string& path);

}  // namespace millrace
