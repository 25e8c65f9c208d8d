#pragma once

#include <optional>
#include <span>
#include <string>

#include "pipeline/shards/shards.h"
#include "pipeline/stages/lane.h"

namespace millrace {

// The error of an epoch without a single sample. `first`: the first error of these lanes; nullopt:
// none. If shards failed, it is that one's kind.
error no_samples(std::span<const lane> lanes, const shard_list_options& options,
                 const std::optional<error>& first);

// " of this rank" if there are others, which may have samples.
std::string of_this_rank(const shard_list_options& options);

}  // namespace millrace
