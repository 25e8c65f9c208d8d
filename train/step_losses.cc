#include "train/step_losses.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>

namespace millrace {

step_losses::step_losses(c10::Device device, reporter& to)
    : to_(to), device_(device), watch_(device), values_(late_values::of(device)) {}

void step_losses::add(const learner::outcome& out, step_report report) {
  // Of a step without samples: 0, which is finite.
  watch_.add(out.loss.defined() ? out.loss.detach() : torch::zeros({}, device_));
  if (out.loss.defined()) last_ = out.loss.detach();
  if (!out.loss.defined() || !to_.wants_loss()) return to_.step(report);
  const torch::NoGradGuard no_grad;
  values_.push(torch::stack({last_.to(torch::kFloat64), out.accuracy().to(torch::kFloat64)}));
  unread_.push_back(std::move(report));
}

bool step_losses::read(bool waits) {
  bool are_finite = true;
  while (const auto values = values_.pop(waits || values_.is_full())) {
    step_report report = std::move(unread_.front());
    unread_.pop_front();
    const double loss = values->front();
    if (std::isfinite(loss)) report.loss = loss;
    are_finite = are_finite && std::isfinite(loss);
    report.accuracy = values->back();
    to_.step(report);
  }
  return are_finite;
}

std::optional<double> step_losses::last() const {
  if (!last_.defined()) return std::nullopt;
  return last_.item<double>();
}

}  // namespace millrace
