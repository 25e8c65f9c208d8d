#include "train/schedule.h"

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

}  // namespace millrace
