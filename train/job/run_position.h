#pragma once

#include <cstdint>

#include "train/command_line/options.h"

namespace millrace {

// The position of a run.
struct run_position {
  std::int64_t step = 0;            // steps taken
  std::int64_t epoch = 0;           // the current one, from 0
  std::int64_t batch_in_epoch = 0;  // batches of it already trained on
  std::int64_t epoch_batches = 0;   // of a whole epoch; 0: unknown

  // Epochs done: 2.5 is half-way through the third.
  double epochs() const;
  // Throws `failure` (usage) if the learning rate changes within the epoch, whose length is
  // unknown.
  void check_rate(const train_options& o) const;
  // Steps left by --epochs and --max-steps; -1: unknown.
  std::int64_t steps_left(const train_options& o) const;
};

}  // namespace millrace
