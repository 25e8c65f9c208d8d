#include "io/http/policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/http/header_values.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds longest_pause{30'000};
constexpr std::chrono::seconds longest_retry_after{60};
// A request that brought this many bytes has not failed, as far as retries are concerned.
constexpr std::uint64_t worthwhile = 65'536;
// Multiples of http_options::attempts: requests in a row that may bring less than that.
constexpr int most_crumbs = 10;

constexpr double smoothing = 0.25;

void smooth(double& value, double sample) {
  value = value == 0 ? sample : (1 - smoothing) * value + smoothing * sample;
}

retry_policy::no_more no_more_of(std::string why) {
  return {std::move(why),
          "http_options.attempts (MILLRACE_HTTP_ATTEMPTS) sets the number of attempts"};
}

std::string told_of(int crumbs) {
  return fmt::format("{} requests in a row brought less than 64 KiB each", crumbs);
}

}  // namespace

void retry_policy::gained(std::uint64_t bytes) {
  gained_ += bytes;
  attempts_ = 0;
}

bool retry_policy::gains_too_little() const {
  return crumbs_ >= most_crumbs * options_.attempts;
}

retry_policy::decision retry_policy::on_failure(bool restarts,
                                                const std::optional<std::string>& retry_after) {
  ++attempts_;
  crumbs_ = gained_ < worthwhile ? crumbs_ + 1 : 0;
  if (restarts && ++restarts_ >= options_.attempts) {
    return no_more_of(fmt::format("restarted {} times", restarts_));
  }
  if (attempts_ >= options_.attempts) {
    return no_more_of(fmt::format("attempt {} of {}", attempts_, options_.attempts));
  }
  if (gains_too_little()) return no_more_of(told_of(crumbs_));
  milliseconds wait = pause();
  if (retry_after) {
    if (const auto asked = parse_retry_after(*retry_after, time_.unix_seconds())) {
      wait = std::max<milliseconds>(wait, std::min(*asked, longest_retry_after));
    }
  }
  return again{wait, std::exchange(gained_, 0) < worthwhile};
}

milliseconds retry_policy::pause() {
  // Full jitter: uniform between zero and the exponential bound.
  const auto doubled = options_.backoff * (1 << std::min(attempts_ - 1, 16));
  const auto bound = std::min<milliseconds>(doubled, longest_pause);
  const milliseconds drawn(
      static_cast<long long>(static_cast<double>(bound.count()) * jitter_.uniform()));
  // A connection that worked for a while may be replaced at once.
  return attempts_ == 1 && gained_ > 0 ? milliseconds(0) : drawn;
}

retry_policy::decision retry_policy::on_end() {
  crumbs_ = std::exchange(gained_, 0) < worthwhile ? crumbs_ + 1 : 0;
  if (gains_too_little()) return no_more_of(told_of(crumbs_));
  return again{};
}

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
  if (fixed_ > 0) return std::min(fixed_, std::max(most, least));
  constexpr double bodies_per_wait = 8;
  const auto wanted = static_cast<std::size_t>(bodies_per_wait * first_byte_s_ * rate_);
  return std::clamp(wanted, least, std::max(most, least));
}

std::size_t part_size::bytes_alone() const {
  if (fixed_ > 0) return fixed_;
  constexpr double seconds = 0.5;
  return std::clamp(static_cast<std::size_t>(seconds * rate_), 8 * least, 64 * least);
}

void part_size::completed(std::size_t bytes, double first_byte_s, double body_s) {
  if (bytes < least / 4 || body_s <= 0) return;  // says little about the rate
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
      first_allowance + static_cast<std::uint64_t>(share_ * static_cast<double>(received_));
  return allowed - std::min(allowed, wasted_);
}

bool hedge_policy::worth_it(std::uint64_t bytes, double seconds, std::uint64_t left) const {
  if (parts_ < least_parts || seconds < least_wait_s || left == 0) return false;
  if (static_cast<double>(bytes) / seconds > usual_rate_ / slower) return false;
  return allowance() > 0;
}

}  // namespace millrace
