#include "train/loop/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace {
namespace {

// From `begin` to `end` along half a cosine; `done` from 0 to 1.
double along_cosine(double begin, double end, double done) {
  return end + (begin - end) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

// The part of `span` that `at` has covered, 0 to 1.
double part_of(double at, double span) {
  constexpr double least_span = 1e-9;
  return std::clamp(at / std::max(span, least_span), 0.0, 1.0);
}

double one_cycle(const schedule_options& o, double epoch, double epochs, double epoch_steps) {
  const double step = epoch_steps > 0 ? 1 / epoch_steps : 0;  // in epochs
  const double peak = o.rising_part * epochs - step;
  const double first = o.lr / o.first_divisor;
  if (epoch < peak) return along_cosine(first, o.lr, part_of(epoch, peak));
  const double from = std::max(peak, 0.0);
  return along_cosine(o.lr, first / o.last_divisor, part_of(epoch - from, epochs - step - from));
}

double by_steps(const schedule_options& o, double epoch) {
  double rate = o.lr;
  for (const double at : o.step_epochs) {
    if (epoch >= at) rate *= o.step_factor;
  }
  return rate;
}

}  // namespace

const std::map<std::string, lr_schedule>& schedule_names() {
  static const auto& names = *new std::map<std::string, lr_schedule>{
      {"constant", lr_schedule::constant},     {"step", lr_schedule::step},
      {"cosine", lr_schedule::cosine},         {"linear", lr_schedule::linear},
      {"polynomial", lr_schedule::polynomial}, {"one-cycle", lr_schedule::one_cycle}};
  return names;
}

double learning_rate(const schedule_options& o, double epoch, double epochs, double epoch_steps) {
  constexpr double warmup_start = 0.01;
  if (epoch < o.warmup_epochs) {
    return o.lr * (warmup_start + (1 - warmup_start) * epoch / o.warmup_epochs);
  }
  const double done = part_of(epoch - o.warmup_epochs, epochs - o.warmup_epochs);
  switch (o.schedule) {
    case lr_schedule::constant:
      return o.lr;
    case lr_schedule::step:
      return by_steps(o, epoch);
    case lr_schedule::cosine:
      return along_cosine(o.lr, o.least, done);
    case lr_schedule::linear:
      return o.least + (o.lr - o.least) * (1 - done);
    case lr_schedule::polynomial:
      return o.least + (o.lr - o.least) * std::pow(1 - done, o.power);
    case lr_schedule::one_cycle:
      return one_cycle(o, epoch, epochs, epoch_steps);
  }
  return o.lr;
}

bool changes_within(const schedule_options& o, std::int64_t epoch) {
  const auto begin = static_cast<double>(epoch);
  if (begin < o.warmup_epochs) return true;
  if (o.schedule == lr_schedule::constant) return false;
  return o.schedule != lr_schedule::step || std::ranges::any_of(o.step_epochs, [&](double at) {
           return at > begin && at < begin + 1;
         });
}

}  // namespace millrace
