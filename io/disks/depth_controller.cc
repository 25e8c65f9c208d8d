#include "io/disks/depth_controller.h"

#include <algorithm>

namespace millrace {
namespace {

constexpr double gain = 1.04;
constexpr int windows_until_next_try = 64;
constexpr int least_reads = 16;

}  // namespace

depth_controller::depth_controller(int fixed, int most, int initial)
    : depth_(fixed > 0 ? fixed : std::min(initial, most)), most_(most), fixed_(fixed > 0) {}

void depth_controller::completed(std::size_t bytes, double now_s, double latency_s,
                                 bool saturated) {
  if (fixed_) return;
  const auto begin_window = [&] {
    begin_s_ = now_s;
    reads_ = saturated_ = 0;
    bytes_ = latency_sum_ = 0;
  };
  if (begin_s_ < 0) return begin_window();
  ++reads_;
  saturated_ += saturated ? 1 : 0;
  bytes_ += static_cast<double>(bytes);
  latency_sum_ += latency_s;
  if (reads_ < std::max(least_reads, 4 * depth_) || now_s <= begin_s_) return;
  if (4 * saturated_ >= 3 * reads_) judge(bytes_ / (now_s - begin_s_), latency_sum_ / reads_);
  begin_window();
}

void depth_controller::judge(double rate, double latency) {
  if (growing_) {
    if (best_rate_ > 0 && rate < best_rate_ * gain) {
      depth_ = std::max(1, depth_ / 2);
      growing_ = false;
      settled_windows_ = 0;
      settled_latency_ = 0;
      return;
    }
    best_rate_ = rate;
    growing_ = depth_ < most_;
    depth_ = std::min(2 * depth_, most_);
    return;
  }
  best_rate_ = best_rate_ > 0 ? 0.75 * best_rate_ + 0.25 * rate : rate;
  if (settled_latency_ <= 0) settled_latency_ = latency;
  if (latency > 2 * settled_latency_ && rate < best_rate_ * gain && depth_ > 1) {
    depth_ /= 2;
    settled_latency_ = 0;
  } else if (++settled_windows_ >= windows_until_next_try && depth_ < most_) {
    growing_ = true;
    depth_ = std::min(2 * depth_, most_);
  }
}

}  // namespace millrace
