#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/base/units.h"
#include "engine/coroutines/time_source.h"
#include "engine/memory/bytes.h"

namespace millrace {

// Limits retries to one origin by a token bucket, so that retries do not overload a server in
// trouble. A successful request earns a tenth of a retry, and two retries are added each second. If
// there is none, the caller waits for one. Pure.
class retry_budget {
 public:
  using time_point = time_source::time_point;

  void succeeded();
  // Takes a retry; returns the time to wait before it.
  steady_clock::duration take(time_point now);

  static constexpr double most = 100;
  static constexpr double per_success = 0.1;
  static constexpr double per_second = 2;

 private:
  double tokens_ = most;  // below zero: promised to waiting callers
  time_point last_{};
};

// Chooses the size of the parts in which an object is requested, by measurement: a body should take
// eight times as long as the wait for its first byte. Between 1 MiB and what the memory allows.
// Pure.
class part_size {
 public:
  // `fixed`: the size that the user has set. 0: by measurement.
  explicit part_size(std::size_t fixed) : fixed_(fixed) {}
  std::size_t bytes(std::size_t most) const;
  // The size for a request that is the only one under way, while the server is not known to profit
  // from more: half a second's worth. The pause between two requests is then negligible, and the
  // next one starts soon if more requests turn out to be better. 8 to 64 MiB.
  std::size_t bytes_alone() const;
  void completed(std::size_t bytes, double first_byte_s, double body_s);

  static constexpr std::size_t least_bytes = 1 << 20;

 private:
  std::size_t fixed_;
  double first_byte_s_ = 0;  // the least of recent ones
  double rate_ = 0;          // bytes per second of one connection, smoothed
};

// The parts of one object, in order. Pure.
class range_planner {
 public:
  explicit range_planner(byte_range whole) : next_(whole.begin), end_(whole.end) {}

  // The next range to request; nullopt when everything is requested. `part_bytes` 0: everything
  // that is left.
  std::optional<byte_range> next(std::size_t part_bytes);
  // The object ends at `total`.
  void known(std::uint64_t total) { end_ = std::min(total, end_.value_or(total)); }
  // A request under way brings everything from `begin` on.
  void all_asked() { done_ = true; }
  bool done() const { return done_ || (end_ && next_ >= *end_); }

 private:
  std::uint64_t next_;
  std::optional<std::uint64_t> end_;
  bool end_is_asked_ = end_.has_value();
  bool done_ = false;
};

// The sizes of a fetch's buffers: small at first, so that the first samples arrive soon, then each
// twice the previous one, up to the size with the best rate. Pure.
class extent_ramp {
 public:
  explicit extent_ramp(std::size_t most) : most_(most), next_(std::min(first_bytes, most)) {}
  std::size_t next() { return std::exchange(next_, std::min(2 * next_, most_)); }

 private:
  static constexpr std::size_t first_bytes = 256_KiB;
  std::size_t most_;
  std::size_t next_;
};

// Decides when to request a slow part a second time. This may cost `share` of all bytes received,
// plus a small initial amount. Pure.
class hedge_policy {
 public:
  explicit hedge_policy(double share) : share_(share) {}

  void received(std::uint64_t bytes) { received_ += bytes; }
  void wasted(std::uint64_t bytes) { wasted_ += bytes; }
  // Records the end of a part: `bytes` in `seconds`, including the wait for its first byte.
  void completed(std::uint64_t bytes, double seconds);
  // Whether to request a part again that has brought `bytes` in `seconds`, and lacks `left`.
  bool worth_it(std::uint64_t bytes, double seconds, std::uint64_t left) const;
  // The bytes that may still be received twice.
  std::uint64_t allowance() const;

  static constexpr std::uint64_t first_allowance_bytes = 4 << 20;
  static constexpr double least_wait_s = 1;
  static constexpr double slower = 4;  // times slower than usual
  static constexpr int least_parts = 4;

 private:
  double share_;
  std::uint64_t received_ = 0;
  std::uint64_t wasted_ = 0;
  int parts_ = 0;
  double usual_rate_ = 0;  // bytes per second, smoothed
};

}  // namespace millrace
