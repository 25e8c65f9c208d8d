#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/samples/sample.h"
#include "pipeline/stages/sample_stage.h"

namespace millrace {

// Stages that choose samples and fields.

// Keeps the samples for which `wanted` returns true. It is called on the I/O thread, and must be
// pure.
sample_stage select(std::function<bool(const sample&)> wanted);
// Keeps a random part of the samples: each with `probability`, by a function of (seed, epoch,
// sample), the same for every number of ranks. Of resampled data the same part forever. Throws
// `failure` (usage) outside [0, 1].
sample_stage select_part(double probability, std::uint64_t seed = 0);

// Renames fields: {{"jpg;jpeg", "image"}}; the first rule that matches counts. Fails with
// duplicate_field if two fields get the same name and, if `all`, with missing_field for a rule that
// matches no field; both skippable.
sample_stage rename_fields(std::vector<std::pair<std::string, std::string>> rules,
                           bool all = false);
// Removes the fields that match none of the patterns (matches_any).
sample_stage keep_fields(std::string patterns);
// Removes the fields that match one of the patterns (matches_any).
sample_stage drop_fields(std::string patterns);
// Appends a line "KEY\tURL\tOFFSET" to a file for every sample that passes. Several processes can
// share the file. Fails with io_failed or not_allowed if it cannot be written.
sample_stage log_keys(std::string path);

}  // namespace millrace
