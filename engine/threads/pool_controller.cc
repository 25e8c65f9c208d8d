#include "engine/threads/pool_controller.h"

#include <algorithm>
#include <cmath>

namespace millrace {

int pool_controller::next(const look& seen) {
  constexpr double starving = 0.02;  // of the time
  constexpr double saturated = 0.8;  // of the threads
  constexpr double filled = 0.9;     // how busy those that are left should be
  constexpr int looks_until_fewer = 5;
  constexpr double longest_avoided = 120;
  if (seen.seconds <= 0) return threads_;
  now_ += seen.seconds;
  const double busy = seen.busy / seen.seconds;
  const bool starves = seen.waited > starving * seen.seconds;
  if (starves && busy > saturated * threads_) {
    calm_looks_ = 0;
    if (threads_ == most_) return threads_;
    avoided_for_ = threads_ == too_few_ ? std::min(2 * avoided_for_, longest_avoided) : 2;
    too_few_ = threads_;
    too_few_until_ = now_ + avoided_for_;
    threads_ = std::min(most_, std::max(threads_ + 1, threads_ * 3 / 2));
    return threads_;
  }
  int enough = std::clamp(static_cast<int>(std::ceil(busy / filled)), 1, most_);
  if (now_ < too_few_until_) enough = std::max(enough, too_few_ + 1);
  calm_looks_ = enough < threads_ ? calm_looks_ + 1 : 0;
  if (calm_looks_ < looks_until_fewer) return threads_;
  calm_looks_ = 0;
  threads_ = std::max(enough, threads_ - std::max(1, threads_ / 4));
  return threads_;
}

}  // namespace millrace
