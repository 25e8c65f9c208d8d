#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "pipeline/formats/end_blocks.h"

namespace millrace {

// Both functions are called on the spine, once for each file, in archive order; they must be pure.
// One that throws a `failure` that is skippable leaves out the sample of the file; anything else
// ends the run. Where `rename` does, the rest of the shard is left out, with the sample that it is
// in: a file without a name may be of any sample.
struct untar_options {
  // After damage, continue at the next valid header instead of the next shard. The loss is a
  // separate error, and counted in the ledger.
  bool resync = false;
  // How to treat an archive without end blocks. `required`: it was cut (truncated), and its last
  // sample is left out, unless an index gives its length and it is that long. `optional`: taken as
  // whole.
  millrace::end_blocks end_blocks = millrace::end_blocks::required;
  // Renames a file, before `select` sees it.
  std::function<std::string(std::string_view name)> rename = nullptr;
  // Whether a file is wanted.
  std::function<bool(std::string_view name)> select = nullptr;
};

}  // namespace millrace
