#pragma once

#include <functional>
#include <stop_token>

#include "pipeline/engine.h"
#include "train/options.h"

namespace millrace {

// Requests to save or to end, from other threads. A request to one rank applies to all.
struct train_control {
  std::stop_token stop = {};  // ends it after the step under way, with a checkpoint
  // The signal that caused a stop request; the exit code is 128 more. None: SIGINT.
  std::function<int()> ending_signal = nullptr;
  // Whether a checkpoint was asked for since the last call.
  std::function<bool()> take_save_request = nullptr;
  // Called when all checks at the start have passed.
  std::function<void()> training_begins = nullptr;
};

// Trains as `options` say, on the data and in the job that they and the environment name. Returns
// the exit code: 0, or 128 + the signal that a rank was asked to end by. Throws `failure`; what can
// be known at the start is thrown before the first step, on all ranks alike.
//
// One call at a time; the calling thread drives the model.
int train(const train_options& options, const engine_options& engine,
          const train_control& control = {});

}  // namespace millrace
