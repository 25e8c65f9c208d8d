#pragma once

#include <memory>
#include <stop_token>

#include "pipeline/engine.h"
#include "train/options.h"

namespace millrace {

// Trains as `options` say, on the data and in the job that they and the environment name. Returns
// the exit code: 0, or 130/143 with `stop` requested by SIGINT/SIGTERM after the step under way.
// Throws `failure`.
//
// One call at a time; the calling thread drives the model.
int train(const train_options& options, const engine_options& engine, std::stop_token stop,
          const std::function<int()>& exit_code_when_stopped);

}  // namespace millrace
