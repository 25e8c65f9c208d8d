#include "io/http/retry_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/http/header_values.h"
#include "io/http/options.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds longest_pause{30'000};
constexpr std::chrono::seconds longest_retry_after{60};
// A request that brought this many bytes has not failed, as far as retries are concerned.
constexpr std::uint64_t worthwhile_bytes = 65'536;
// Multiples of http_options::attempts: requests in a row that may bring less than that.
constexpr int most_crumbs_factor = 10;

std::string crumbs_text(int crumbs) {
  return fmt::format("{} requests in a row brought less than {} KiB each", crumbs,
                     worthwhile_bytes / 1024);
}

}  // namespace

retry_policy::retry_policy(const http_options& options, time_source& time,
                           std::uint64_t jitter_seed)
    : most_attempts_(options.attempts),
      first_pause_(options.backoff),
      time_(time),
      jitter_(jitter_seed, purpose::retry) {}

void retry_policy::gained(std::uint64_t bytes) {
  gained_ += bytes;
  attempts_ = 0;
}

bool retry_policy::gains_too_little() const {
  return crumbs_ >= most_crumbs_factor * most_attempts_;
}

retry_policy::decision retry_policy::on_failure(bool restarts,
                                                const std::optional<std::string>& retry_after) {
  ++attempts_;
  crumbs_ = gained_ < worthwhile_bytes ? crumbs_ + 1 : 0;
  if (restarts && ++restarts_ >= most_attempts_) {
    return no_more{fmt::format("restarted {} times", restarts_)};
  }
  if (attempts_ >= most_attempts_) {
    return no_more{fmt::format("attempt {} of {}", attempts_, most_attempts_)};
  }
  if (gains_too_little()) return no_more{crumbs_text(crumbs_)};
  milliseconds wait = pause();
  if (retry_after) {
    if (const auto asked = parse_retry_after(*retry_after, time_.unix_seconds())) {
      wait = std::max<milliseconds>(wait, std::min(*asked, longest_retry_after));
    }
  }
  return again{wait, std::exchange(gained_, 0) < worthwhile_bytes};
}

milliseconds retry_policy::pause() {
  // Full jitter: uniform between zero and the exponential bound.
  const auto doubled = first_pause_ * (1 << std::min(attempts_ - 1, 16));
  const auto bound = std::min<milliseconds>(doubled, longest_pause);
  const milliseconds drawn(
      static_cast<long long>(static_cast<double>(bound.count()) * jitter_.uniform()));
  // A connection that worked for a while may be replaced at once.
  return attempts_ == 1 && gained_ > 0 ? milliseconds(0) : drawn;
}

retry_policy::decision retry_policy::on_end() {
  crumbs_ = std::exchange(gained_, 0) < worthwhile_bytes ? crumbs_ + 1 : 0;
  if (gains_too_little()) return no_more{crumbs_text(crumbs_)};
  return again{};
}

}  // namespace millrace
