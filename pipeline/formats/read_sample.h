#pragma once

#include <cstdint>
#include <optional>

#include "io/registry.h"
#include "io/source.h"
#include "pipeline/samples/sample.h"
#include "pipeline/samples/sample_name.h"

namespace millrace {

// A sample's place within its shard, from an index.
struct indexed_place {
  byte_range range;                   // must have an end
  std::optional<std::uint16_t> name;  // name_sum() of its first file, if known
};

// Reads one place of an uncompressed archive as a sample, in memory of its own. Fails with
// integrity if the shard has no sample there, or a different one; with bad_field if a member's data
// is not a file's content; and with the errors of reading.
awaitable<result<sample>> read_sample(source_context context, const source_registry& sources,
                                      std::shared_ptr<memory_share> memory,
                                      std::shared_ptr<const std::string> url, indexed_place place);

}  // namespace millrace
