#pragma once

#include <cstdint>

#include "pipeline/lane_cursor.h"
#include "pipeline/state.h"
#include "train/checkpoint_files.h"
#include "train/distributed.h"
#include "train/options.h"

namespace millrace {

// How many steps, as far as that is known.
struct number_of_steps {
  std::int64_t least = 0;
  std::int64_t most = 0;
  bool is_exact() const { return least > 0 && least == most; }
};

// What is known of a run's epochs. One thread; refers to the options.
class epoch_facts {
 public:
  epoch_facts(const train_options& options, const job_place& place);

  // The run is resumed from `c`, and its data are at `position`.
  void resume(const checkpoint_record& c, const state& position);
  // An epoch was over after so many batches of each rank.
  void end(std::int64_t batches) { learn({batches, batches}); }

  // Batches of each rank in a whole epoch: those that the options set, whatever others had.
  number_of_steps batches() const { return batches_; }
  // Samples that no rank gets in an epoch, so that all lanes have as many. The lanes that have
  // begun it decide that.
  std::uint64_t left_out(std::int64_t epoch) const;

 private:
  void learn(number_of_steps batches);

  const train_options& options_;
  job_place place_;
  number_of_steps batches_;
  epoch_tail begun_;  // the epoch that is resumed, where other lanes have begun it
};

}  // namespace millrace
