#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/sample.h"
#include "pipeline/stages/sample_stage.h"

namespace millrace {

// Stages that choose samples and fields.

// Keeps the samples for which `wanted` returns true. It is called on the I/O thread, and must be
// pure.
sample_stage select(std::function<bool(const sample&)> wanted);
// Keeps a part of the samples, about `probability` of them: a function of (seed, epoch, sample),
// the same for every number of ranks. Of resampled data the same part for ever. Throws `failure`
// (usage) outside [0, 1].
sample_stage select_part(double probability, std::uint64_t seed = 0);

// Renames fields: {{"jpg;jpeg", "image"}}; the first rule that matches counts. Fails with
// duplicate_field where two fields come to one name, and with missing_field for a rule that no
// field matches, where `all`.
sample_stage rename_fields(std::vector<std::pair<std::string, std::string>> rules,
                           bool all = false);
sample_stage keep_fields(std::string patterns);
sample_stage drop_fields(std::string patterns);
// Writes "KEY\tURL\tOFFSET" of every sample that passes to a file; appended to, a line at a time,
// so that several processes can share it. Fails with io_failed.
sample_stage log_keys(std::string path);

}  // namespace millrace
