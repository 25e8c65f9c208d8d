#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace millrace {

// The course of the learning rate after its warm-up: not at all, by a factor at some epochs, or
// from `lr` down to `least` along half a cosine, a line or a power of what is left. one_cycle rises
// along half a cosine from a part of `lr` to `lr`, and then falls along another. Each is that of
// torch.optim.lr_scheduler: ConstantLR, MultiStepLR, CosineAnnealingLR, LinearLR, PolynomialLR (of
// `least` 0) and OneCycleLR.
enum class lr_schedule { constant, step, cosine, linear, polynomial, one_cycle };

// The schedules by the names that --schedule has for them.
const std::map<std::string, lr_schedule>& schedule_names();

// The learning rate over a run.
struct schedule_options {
  double lr = 0.1;                              // the largest, for the whole batch of all ranks
  lr_schedule schedule = lr_schedule::step;     // after the warm-up
  std::vector<double> step_epochs{30, 60, 80};  // where `step` multiplies by `step_factor`
  double step_factor = 0.1;                     // 0 to 1
  double least = 0;              // where cosine, linear and polynomial end; at most `lr`
  double power = 1;              // of polynomial, 0 or more
  double rising_part = 0.3;      // of one_cycle's steps, 0 to 1
  double first_divisor = 25;     // one_cycle begins at lr divided by this, 1 or more
  double last_divisor = 10'000;  // and ends at that divided by this, 1 or more
  double warmup_epochs = 0;      // linear, from a hundredth of lr; 0 for one_cycle
};

// The learning rate at `epoch` (a fraction: 2.5 is half-way through the third) of `epochs`. A pure
// function. `epoch_steps`: the number of steps of an epoch, by which one_cycle reaches its largest
// and its last rate at a step and not between two; 0: as if there were very many.
double learning_rate(const schedule_options& o, double epoch, double epochs,
                     double epoch_steps = 0);

// Whether the learning rate changes within an epoch, so that the epoch's length must be known.
// Pure.
bool changes_within(const schedule_options& o, std::int64_t epoch);

}  // namespace millrace
