#pragma once

#include "io/source.h"

namespace millrace {

// A regular file, read ahead in extents (options.extent_bytes) through the I/O thread's block_io.
// Its size is taken at open: a file that shrinks afterwards is an error (`changed`).
awaitable<result<std::unique_ptr<byte_source>>> open_file_source(source_context context,
                                                                 std::string text, url where,
                                                                 std::uint64_t offset);

// Standard input: as a file where it is one, else as a pipe read to its end.
awaitable<result<std::unique_ptr<byte_source>>> open_stdin_source(source_context context,
                                                                  std::string text, url where,
                                                                  std::uint64_t offset);

}  // namespace millrace
