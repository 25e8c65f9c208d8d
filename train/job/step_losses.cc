#include "train/job/step_losses.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
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

bool step_losses::read(which steps) {
  bool are_finite = true;
  while (const auto values = values_.pop(steps == which::all || values_.is_full())) {
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

void check_finite(const step_losses& losses, const steps_taken& steps, process_group& group,
                  run_checkpoints& saved) {
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  const std::int64_t finite = losses.finite();
  const std::int64_t mine = finite < losses.seen() ? steps.first + finite + 1 : none;
  const std::int64_t first = group.smallest({mine}).wait().front();
  if (first == none) return;
  group.together([&] {
    if (!group.is_first()) return;
    saved.settle();
    throw failure(saved.diverged(
        fmt::format("the loss is not finite from step {} on{}", first,
                    first < steps.now ? fmt::format(" (this is step {})", steps.now) : "")));
  });
}

}  // namespace millrace
