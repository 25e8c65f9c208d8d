#include "train/loop/schedule.h"

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

bool changes_within(const optimizer_options& o, std::int64_t epoch) {
  const auto begin = static_cast<double>(epoch);
  if (begin < o.warmup_epochs || o.schedule == lr_schedule::cosine) return true;
  return o.schedule == lr_schedule::step && std::ranges::any_of(o.step_epochs, [&](double at) {
           return at > begin && at < begin + 1;
         });
}

}  // namespace millrace
