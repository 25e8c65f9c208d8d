#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

// How the learning rate changes: not at all, by a factor at some epochs, or along half a cosine,
// down to 0.
enum class lr_schedule { constant, step, cosine };

// SGD and its learning rate.
struct optimizer_options {
  double lr = 0.1;                           // learning rate, for the whole batch of all ranks
  double momentum = 0.9;                     // 0 to 1
  double weight_decay = 1e-4;                // of all parameters
  bool nesterov = false;                     // needs a momentum above 0
  double clip_norm = 0;                      // of the gradient, over all parameters; 0: not clipped
  lr_schedule schedule = lr_schedule::step;  // of the learning rate
  std::vector<double> step_epochs{30, 60, 80};  // where `step` multiplies by `step_factor`
  double step_factor = 0.1;                     // 0 to 1
  double warmup_epochs = 0;                     // linear, from a hundredth of lr
};

// The learning rate at `epoch` (a fraction: 2.5 is half-way through the third) of `epochs`. A pure
// function.
double learning_rate(const optimizer_options& o, double epoch, double epochs);

// Whether the learning rate changes within an epoch, so that the epoch's length must be known.
// Pure.
bool changes_within(const optimizer_options& o, std::int64_t epoch);

}  // namespace millrace
