#pragma once

#include <cstddef>
#include <string>

#include "pipeline/shard_index.h"

namespace millrace {

class engine;

// An index from a file or URL, with its sidecar where there is one, within the engine's budget.
// Blocks. Throws `failure`.
shard_index read_index(engine& eng, const std::string& url, const std::string& base = "");

// The text of an index, of at most an eighth of the engine's budget. Blocks. Throws `failure`.
std::string read_text(engine& eng, const std::string& url);
// The bytes that the JSON of an index may take when it is parsed: a quarter of the budget.
std::size_t room_for_index(const engine& eng);

}  // namespace millrace
