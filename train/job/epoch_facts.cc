#include "train/job/epoch_facts.h"

#include "pipeline/state/records.h"
#include "train/job/data.h"

namespace millrace {

epoch_facts::epoch_facts(const train_options& options, const job_place& place)
    : options_(options), place_(place) {
  batches_.least = batches_.most = known_epoch_batches(options, place);
  batches_.varies = options.mode == train_epochs::exact && place.world_size > 1 &&
                    !options.lengths && options.raw.empty();
}

void epoch_facts::resume(const checkpoint_record& c, const state& position) {
  const number_of_steps then{c.epoch_batches, c.epoch_batches_most};
  if (then.is_exact() || batches_.least == 0) learn(then);
  begun_ = tail_in(position);
}

std::uint64_t epoch_facts::left_out(std::int64_t epoch) const {
  const bool is_begun = !begun_.levels.empty() && begun_.epoch == epoch;
  return left_out_of_epoch(options_, place_,
                           is_begun ? static_cast<int>(begun_.levels.front().size()) : 0);
}

void epoch_facts::learn(number_of_steps batches) {
  if (epoch_length(options_, place_.world_size) != 0) return;
  const bool varies = batches_.varies;
  batches_ = batches;
  batches_.varies = varies;
}

}  // namespace millrace
