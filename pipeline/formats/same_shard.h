#pragma once

#include <string>

#include "io/registry.h"
#include "io/source.h"
#include "pipeline/formats/untar_options.h"
#include "pipeline/plan.h"
#include "pipeline/shard_head.h"
#include "pipeline/shards.h"

namespace millrace {

// Checks whether a shard is the one that an index or a saved state describes. Errors are skippable.
// Referents outlive the calls.

// Fails with `integrity` if an object has more bytes than its index says, or as the run if that is
// stopped. A shorter object was cut, which its reader reports, and so does it any other failure.
// `bytes` 0: unknown.
awaitable<result<void>> check_length(source_context context, const source_registry& sources,
                                     std::string url, std::int64_t bytes);

// Fails with `integrity` if no sample begins at one of the ends of `part`, which an index says of a
// plain tar shard: samples of another shard would be cut in two there. It reads the headers of the
// samples before both ends. Damage says nothing, and failures to read are the reader's to report.
awaitable<result<void>> check_bounds(lane_context& lane, const untar_options& how, shard_ref part);

// Reads the first bytes of a shard again. Fails with `changed` if they differ from `expected`, else
// as reading fails.
awaitable<result<void>> check_head(lane_context& lane, shard_head expected);

}  // namespace millrace
