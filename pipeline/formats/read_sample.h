#pragma once

#include <cstdint>
#include <optional>

#include "io/registry.h"
#include "io/source.h"
#include "pipeline/sample.h"
#include "pipeline/sample_name.h"

namespace millrace {

// Where a sample is in its shard, as an index says.
struct indexed_place {
  byte_range range;                   // with an end
  std::optional<std::uint16_t> name;  // name_sum() of its first file, where that is known
};

// Reads one place of a plain archive as a sample, in memory of its own. Fails with integrity where
// the shard has no sample there, or another one, with bad_field for a file that is none, and with
// what reading fails with.
awaitable<result<sample>> read_sample(source_context context, const source_registry& sources,
                                      std::shared_ptr<memory_share> memory,
                                      std::shared_ptr<const std::string> url, indexed_place place);

}  // namespace millrace
