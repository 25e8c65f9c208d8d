#pragma once

#include "io/source.h"

namespace millrace {

// Whether a shard of this name is gzip-compressed (.gz, .tgz).
bool is_gzip_name(std::string_view url);

// The decompressed bytes of `compressed` from `offset` on (which is counted in decompressed bytes:
// what lies before is decompressed and left out). Decompression runs in the CPU pool, into buffers
// from `memory`. A cut or damaged stream is an error; concatenated gzip members are one stream.
std::unique_ptr<byte_source> gunzip(source_context context, std::shared_ptr<memory_share> memory,
                                    std::unique_ptr<byte_source> compressed, std::string url,
                                    std::uint64_t offset);

}  // namespace millrace
