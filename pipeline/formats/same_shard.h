#pragma once

#include <string>

#include "io/registry.h"
#include "io/source.h"
#include "pipeline/formats/untar_options.h"
#include "pipeline/plan/plan.h"
#include "pipeline/shards/shards.h"
#include "pipeline/state/shard_head.h"

namespace millrace {

// Checks that a shard is the one that an index or a saved state describes. Errors are skippable.
// Arguments given by reference outlive the calls.

// Fails with `integrity` if an object has more bytes than its index says (`bytes`; 0: unknown), and
// with `stopped` if the run is stopped. If the object is shorter, or cannot be read, the reader of
// the shard reports that.
awaitable<result<void>> check_length(source_context context, const source_registry& sources,
                                     std::string url, std::int64_t bytes);

// Fails with `integrity` if no sample begins at one of the ends of `part`, although the index says
// so: samples of another shard would be cut in two there. For uncompressed tar shards. Reads the
// headers of the samples before both ends. Ignores damage, and errors of reading, which the reader
// of the shard reports; fails with `stopped` if the run is stopped.
awaitable<result<void>> check_bounds(lane_context& lane, const untar_options& how, shard_ref part);

// Reads the first bytes of a shard again. Fails with `changed` if they differ from `expected`, or
// with the error of reading them.
awaitable<result<void>> check_head(lane_context& lane, shard_head expected);

}  // namespace millrace
