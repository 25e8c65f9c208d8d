#include "train/command_line/options.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace millrace {

std::int64_t epoch_length(const train_options& o, int world_size) {
  if (o.epoch_samples == 0) return o.epoch_batches;
  const std::int64_t of_all = static_cast<std::int64_t>(world_size) * o.batch_size;
  if (o.epoch_samples >= of_all) return o.epoch_samples / of_all;
  throw failure(
      error(errc::usage,
            fmt::format("--epoch-samples {} is less than one batch of {} on each of {} ranks",
                        o.epoch_samples, o.batch_size, world_size))
          .hint(fmt::format("use {} or more", of_all)));
}

}  // namespace millrace
