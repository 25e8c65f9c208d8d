#pragma once

#include <cstdint>

#include "engine/base/error.h"
#include "pipeline/plan/ledger.h"
#include "pipeline/state/lane_cursor.h"
#include "pipeline/state/state.h"
#include "train/checkpoints/checkpoint_files.h"
#include "train/command_line/options.h"
#include "train/job/run_inputs.h"

namespace millrace {

// The known range of a number of steps.
struct number_of_steps {
  std::int64_t least = 0;
  std::int64_t most = 0;
  bool varies = false;  // from epoch to epoch: it is one epoch's
  bool is_exact() const { return least > 0 && least == most && !varies; }
};

// The known lengths of a run's epochs. One thread; refers to the options and to what was found.
class epoch_facts {
 public:
  epoch_facts(const train_options& options, const run_inputs& found);

  // Call if the run is resumed from `c`, with its data at `position`.
  void resume(const checkpoint_record& c, const state& position);
  // Call when an epoch has ended after `batches` batches on each rank.
  void end(std::int64_t batches) { learn({batches, batches}); }

  // Batches of each rank in a whole epoch; a length in the options takes precedence.
  number_of_steps batches() const { return batches_; }
  // Samples left out of an epoch to make lanes equal; depends on the lanes that began it.
  std::uint64_t left_out(std::int64_t epoch) const;

 private:
  void learn(number_of_steps batches);

  const train_options& options_;
  const run_inputs& found_;
  number_of_steps batches_;
  epoch_tail begun_;  // the resumed epoch, if it was begun with other lanes
};

// The error that an epoch ended before its first step, with the reason.
error no_step(const train_options& options, const ledger& counts);

}  // namespace millrace
