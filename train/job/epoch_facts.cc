#include "train/job/epoch_facts.h"

#include <fmt/format.h>

#include "engine/base/words.h"
#include "pipeline/state/records.h"
#include "train/job/data.h"

namespace millrace {

epoch_facts::epoch_facts(const train_options& options, const run_inputs& found)
    : options_(options), found_(found) {
  batches_.least = batches_.most = known_epoch_batches(options, found);
  batches_.varies = options.mode == train_epochs::exact && found.parts.place().world_size > 1 &&
                    !found.lengths && options.raw.empty();
}

void epoch_facts::resume(const checkpoint_record& c, const state& position) {
  const number_of_steps then{c.epoch_batches, c.epoch_batches_most};
  if (then.is_exact() || batches_.least == 0) learn(then);
  begun_ = tail_in(position);
}

std::uint64_t epoch_facts::left_out(std::int64_t epoch) const {
  const bool is_begun = !begun_.levels.empty() && begun_.epoch == epoch;
  return left_out_of_epoch(options_, found_,
                           is_begun ? static_cast<int>(begun_.levels.front().size()) : 0);
}

void epoch_facts::learn(number_of_steps batches) {
  if (epoch_length(options_, found_.parts.place().world_size) != 0) return;
  const bool varies = batches_.varies;
  batches_ = batches;
  batches_.varies = varies;
}

error no_step(const train_options& options, const ledger& counts) {
  const std::uint64_t skipped = counts.skipped_in_all();
  if (skipped > 0) {
    return error(
               errc::no_samples,
               fmt::format("an epoch without a single step: {} skipped, and fewer than a batch of "
                           "{} left; the first: {}",
                           counted(skipped, "sample"), options.batch_size,
                           counts.first_skipped.empty() ? "" : counts.first_skipped.front()))
        .hint("repair the data (--skipped FILE lists all), or lower --batch-size");
  }
  return error(errc::no_samples,
               fmt::format("an epoch without a single step: a rank has fewer samples than a batch "
                           "of {}",
                           options.batch_size))
      .hint("lower --batch-size, or use fewer ranks");
}

}  // namespace millrace
