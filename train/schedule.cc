#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace {

double learning_rate(const optimizer_options& o, double epoch, double epochs) {
  constexpr double warmup_start = 0.01;
  if (epoch < o.warmup_epochs) {
    return o.lr * (warmup_start + (1 - warmup_start) * epoch / o.warmup_epochs);
  }
  switch (o.schedule) {
    case lr_schedule::constant:
      return o.lr;
    case lr_schedule::step: {
      double rate = o.lr;
      for (const double at : o.step_epochs) {
        if (epoch >= at) rate *= o.step_factor;
      }
      return rate;
    }
    case lr_schedule::cosine: {
      const double span = std::max(epochs - o.warmup_epochs, 1e-9);
      const double done = std::min((epoch - o.warmup_epochs) / span, 1.0);
      return o.lr * (1 + std::cos(std::numbers::pi * done)) / 2;
    }
  }
  return o.lr;
}

double run_position::epochs() const {
  const double within =
      epoch_batches > 0 ? static_cast<double>(batch_in_epoch) / static_cast<double>(epoch_batches)
                        : 0;
  return static_cast<double>(epoch) + std::min(within, 1.0);
}

std::int64_t run_position::steps_left(const train_options& o) const {
  const std::int64_t by_epochs =
      epoch_batches > 0
          ? std::max<std::int64_t>((o.epochs - epoch) * epoch_batches - batch_in_epoch, 0)
          : -1;
  if (o.max_steps == 0) return by_epochs;
  const std::int64_t by_steps = std::max<std::int64_t>(o.max_steps - step, 0);
  return by_epochs < 0 ? by_steps : std::min(by_steps, by_epochs);
}

}  // namespace millrace
