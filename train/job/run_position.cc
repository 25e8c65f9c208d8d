#include "train/job/run_position.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "engine/base/error.h"

namespace millrace {

void run_position::check_rate(const train_options& o) const {
  if (epoch_batches > 0 || !changes_within(o.rate, epoch)) return;
  std::string by = "--step-epochs";
  for (const auto& [name, schedule] : schedule_names()) {
    if (schedule == o.rate.schedule && schedule != lr_schedule::step) by = "--schedule " + name;
  }
  if (static_cast<double>(epoch) < o.rate.warmup_epochs) by = "--warmup-epochs";
  const bool may_be_indexed = std::ranges::none_of(
      o.shards, [](const std::string& url) { return url == "-" || url.starts_with("pipe:"); });
  throw failure(error(errc::usage,
                      fmt::format("{} changes the learning rate within epoch {}, whose number of "
                                  "steps is not known",
                                  by, epoch))
                    .hint(fmt::format(
                        "{}set an epoch's length: --epoch-samples or --epoch-batches",
                        may_be_indexed ? "give the shards' --index (millrace index), or " : "")));
}

double run_position::epochs() const {
  const double within =
      epoch_batches > 0 ? static_cast<double>(batch_in_epoch) / static_cast<double>(epoch_batches)
                        : 0;
  return static_cast<double>(epoch) + std::min(within, 1.0);
}

std::int64_t run_position::steps_left(const train_options& o) const {
  std::int64_t by_epochs = -1;
  if (epoch_batches > 0) {
    if (__builtin_mul_overflow(o.epochs - epoch, epoch_batches, &by_epochs)) {
      by_epochs = std::numeric_limits<std::int64_t>::max();
    }
    by_epochs = std::max<std::int64_t>(by_epochs - batch_in_epoch, 0);
  }
  if (o.max_steps == 0) return by_epochs;
  const std::int64_t by_steps = std::max<std::int64_t>(o.max_steps - step, 0);
  return by_epochs < 0 ? by_steps : std::min(by_steps, by_epochs);
}

}  // namespace millrace
