#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "pipeline/formats/end_blocks.h"

namespace millrace {

// Options of untar() and tar_samples(). Both functions are called on the I/O thread, once for each
// file, in archive order; they must be pure. If one throws a skippable `failure`, the sample of
// that file is left out (if `rename` does, also the rest of the shard: a file without a name may be
// of any sample); anything else that it throws ends the run.
struct untar_options {
  // After damage, continues at the next valid header instead of the next shard. The loss is a
  // separate error, and counted in the ledger.
  bool resync = false;
  // Treatment of an archive without end blocks. `required`: it was cut (truncated), and its last
  // sample is left out, unless an index gives its length and it is that long. `optional`: it is
  // complete.
  millrace::end_blocks end_blocks = millrace::end_blocks::required;
  // Returns the new name of a file. Called before `select`.
  std::function<std::string(std::string_view name)> rename = nullptr;
  // Returns whether a file is wanted.
  std::function<bool(std::string_view name)> select = nullptr;
};

}  // namespace millrace
