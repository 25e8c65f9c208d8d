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

// The sources of all schemes of millrace on the I/O thread `io`, with devices, open files and
// kept-alive connections of their own.
source_registry standard_sources(io_thread& io, const source_options& options);

// The memory that suffices for any one of `urls`: the maximum over their kinds (files, objects on
// servers, others; through the cache or not). Examines the device of the first file of each kind;
// other sources need the same wherever they are. Blocks for as long as a stat() of those files
// takes.
source_memory memory_for(const source_options& options, std::span<const std::string> urls);
// Describes how much of the device's rate the budget costs, for the device that a file is on
// (io/disks/disk.h); nullopt if it costs none, or the URL is not a file.
std::optional<std::string> rate_lost(const source_options& options, const std::string& url,
                                     std::size_t share_bytes, std::size_t shards,
                                     std::size_t budget_bytes);
// Estimates the bytes that a run reads in an epoch, from the size of the first file.
std::uint64_t working_set_of(const std::vector<std::string>& urls);

}  // namespace millrace
