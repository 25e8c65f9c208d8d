#pragma once

#include <cstddef>
#include <string>

#include "pipeline/shards/shard_index.h"

namespace millrace {

class engine;

// Reads an index from a file or URL, with its file of offsets if there is one, within the engine's
// budget. `base`: of relative URLs; see parse_index(). Blocks. Throws `failure` as that does, and
// for errors of reading. Example: examples/random_access.cc.
shard_index read_index(engine& eng, const std::string& url, const std::string& base = "");

// The text of a file or URL, of at most an eighth of the engine's budget (else too_large). Blocks.
// Throws `failure`.
std::string read_text(engine& eng, const std::string& url);
// Bytes that the JSON of an index may take when it is parsed: a quarter of the budget.
std::size_t room_for_index(const engine& eng);

}  // namespace millrace
