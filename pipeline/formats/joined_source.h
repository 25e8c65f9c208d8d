#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/formats/join_options.h"
#include "pipeline/formats/sample_source.h"
#include "pipeline/plan/run_context.h"

namespace millrace {

// A join of companion shards to those of a plan.
struct joining {
  std::string pattern;     // of the companions' URLs; `{}` is the shard_stem() of the main shard
  join_options options;    // of join()
  std::size_t number = 0;  // the join's in the plan: its memory is lane_context::companions[number]
};

// Adds fields to a sample. Fails, and leaves it as it was, with duplicate_field if both have one of
// a name, and with too_large beyond the most fields and bytes of names of a sample (sample_name.h).
result<void> add_fields(sample& to, std::vector<field> more);

// Counts a sample without a companion, or without a row of a table, that is not an error.
void count_without_companion(ledger& counts, missing_companion how);
// The fate of such a sample, for a notice.
std::string_view became(missing_companion how);
// A notice about what does not fit: the first ten of a run; further ones are counted alone.
void report_companions(run_context& run, std::string_view line);

// The URL of a shard's companion.
std::string companion_url(std::string_view pattern, std::string_view shard);

// A format that gives the samples of `main` with the fields that the companion shard has under
// their keys. Places are those of `main`: a companion is read from its beginning, or through its
// index, wherever a reader begins.
std::shared_ptr<const sample_source> joined_samples(std::shared_ptr<const sample_source> main,
                                                    joining with);

}  // namespace millrace
