#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "pipeline/formats/join_options.h"
#include "pipeline/formats/sample_source.h"

namespace millrace {

// A join of companion shards to those of a plan.
struct joining {
  std::string pattern;     // of the companions' URLs; `{}` is the shard_stem() of the main shard
  join_options options;    // of join()
  std::size_t number = 0;  // the join's in the plan: its memory is lane_context::companions[number]
};

// The URL of a shard's companion.
std::string companion_url(std::string_view pattern, std::string_view shard);

// A format that gives the samples of `main` with the fields that the companion shard has under
// their keys. Places are those of `main`: a companion is read from its beginning, or through its
// index, wherever a reader begins.
std::shared_ptr<const sample_source> joined_samples(std::shared_ptr<const sample_source> main,
                                                    joining with);

}  // namespace millrace
