#include "io/http/policies.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr double smoothing = 0.25;

void smooth(double& value, double sample) {
  value = value == 0 ? sample : (1 - smoothing) * value + smoothing * sample;
}

}  // namespace

void retry_budget::succeeded() {
  tokens_ = std::min(most, tokens_ + per_success);
}

steady_clock::duration retry_budget::take(time_point now) {
  if (last_ != time_point{}) {
    const double passed = std::chrono::duration<double>(now - last_).count();
    tokens_ = std::min(most, tokens_ + passed * per_second);
  }
  last_ = now;
  tokens_ -= 1;
  if (tokens_ >= 0) return {};
  return std::chrono::duration_cast<steady_clock::duration>(
      std::chrono::duration<double>(-tokens_ / per_second));
}

std::size_t part_size::bytes(std::size_t most) const {
  if (fixed_ > 0) return std::min(fixed_, std::max(most, least_bytes));
  constexpr double bodies_per_wait = 8;
  const auto wanted = static_cast<std::size_t>(bodies_per_wait * first_byte_s_ * rate_);
  return std::clamp(wanted, least_bytes, std::max(most, least_bytes));
}

std::size_t part_size::bytes_alone() const {
  if (fixed_ > 0) return fixed_;
  constexpr double seconds = 0.5;
  return std::clamp(static_cast<std::size_t>(seconds * rate_), 8 * least_bytes, 64 * least_bytes);
}

void part_size::completed(std::size_t bytes, double first_byte_s, double body_s) {
  if (bytes < least_bytes / 4 || body_s <= 0) return;  // says little about the rate
  // The least of recent ones: later first bytes have waited for other parts.
  constexpr double forgotten = 1.02;
  first_byte_s_ =
      first_byte_s_ == 0 ? first_byte_s : std::min(first_byte_s, forgotten * first_byte_s_);
  smooth(rate_, static_cast<double>(bytes) / body_s);
}

std::optional<byte_range> range_planner::next(std::size_t part_bytes) {
  if (done()) return std::nullopt;
  byte_range range{.begin = next_, .end = end_is_asked_ ? end_ : std::nullopt};
  if (part_bytes == 0) {
    done_ = true;
    return range;
  }
  range.end = std::min(next_ + part_bytes, end_.value_or(next_ + part_bytes));
  next_ = *range.end;
  return range;
}

void hedge_policy::completed(std::uint64_t bytes, double seconds) {
  if (seconds <= 0 || bytes == 0) return;
  ++parts_;
  smooth(usual_rate_, static_cast<double>(bytes) / seconds);
}

std::uint64_t hedge_policy::allowance() const {
  if (share_ <= 0) return 0;
  const auto allowed =
      first_allowance_bytes + static_cast<std::uint64_t>(share_ * static_cast<double>(received_));
  return allowed - std::min(allowed, wasted_);
}

bool hedge_policy::worth_it(std::uint64_t bytes, double seconds, std::uint64_t left) const {
  if (parts_ < least_parts || seconds < least_wait_s || left == 0) return false;
  if (static_cast<double>(bytes) / seconds > usual_rate_ / slower) return false;
  return allowance() > 0;
}

}  // namespace millrace
