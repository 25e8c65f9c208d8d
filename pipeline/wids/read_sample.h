#pragma once

#include "io/source.h"
#include "pipeline/sample.h"

namespace millrace {

// Reads [begin, end) of a plain archive as one sample, in memory of its own. Fails with integrity
// where the shard has no sample there, with bad_field for a file that is none, and with what
// reading fails with.
awaitable<result<sample>> read_sample(source_context context, const source_registry& sources,
                                      std::shared_ptr<memory_share> memory,
                                      std::shared_ptr<const std::string> url, byte_range where);

}  // namespace millrace
