#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/registry.h"
#include "io/source.h"

namespace millrace {

// All schemes of millrace for sources on the I/O thread `io`, with its own devices, open files and
// kept-alive connections.
source_registry standard_sources(io_thread& io, const source_options& options);

// What suffices for any one of `urls`: the largest over their kinds (files, objects on servers,
// others; through the cache or not). Looks at the device that the first file of a kind is on; other
// sources need the same wherever they are. Blocks for as long as a stat() of those files takes.
source_memory memory_for(const source_options& options, std::span<const std::string> urls);
// The part of the device's rate that the budget costs, for the device that a file is on
// (io/disks/disk.h).
std::optional<std::string> rate_lost(const source_options& options, const std::string& url,
                                     std::size_t share_bytes, std::size_t shards,
                                     std::size_t budget_bytes);
// Estimates the bytes that a run reads in an epoch, from the size of the first file.
std::uint64_t working_set_of(const std::vector<std::string>& urls);

}  // namespace millrace
