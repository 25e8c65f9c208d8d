#pragma once

#include <string>

#include "io/registry.h"
#include "io/source.h"
#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// What tells that a shard is another one than was indexed. Both fail with `integrity`, skippable,
// or where the run is stopped: that a shard cannot be read tells who reads it. Referents outlive
// the calls.

// Whether an object has more bytes than its index says; one that has fewer was cut, which who reads
// the rest tells. 0: unknown.
awaitable<result<void>> check_length(source_context context, const source_registry& sources,
                                     std::string url, std::int64_t bytes);

// Whether samples begin at both ends of a part of a plain tar shard, as the index says that dealt
// it: by the headers of the samples before them. Of another shard, samples would be cut in two
// there. What is damaged says nothing.
awaitable<result<void>> check_bounds(lane_context& lane, shard_ref part);

}  // namespace millrace
