#include "engine/host/stats.h"

#include <algorithm>
#include <cmath>

namespace millrace {

void latency_histogram::add(double seconds) {
  const double microseconds = std::max(1.0, seconds * 1e6);
  const auto at = static_cast<std::size_t>(std::log2(microseconds) * 8);
  ++counts_[std::min(at, counts_.size() - 1)];
  ++count_;
  most_ = std::max(most_, seconds);
}

void latency_histogram::add(const latency_histogram& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  most_ = std::max(most_, other.most_);
}

latency_histogram latency_histogram::since(const latency_histogram& before) const {
  latency_histogram out = *this;
  for (std::size_t i = 0; i < counts_.size(); ++i) out.counts_[i] -= before.counts_[i];
  out.count_ -= before.count_;
  return out;
}

double latency_histogram::percentile(double share) const {
  if (count_ == 0) return 0;  // most_ may be of before
  double left = share * static_cast<double>(count_);
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    left -= static_cast<double>(counts_[i]);
    if (counts_[i] > 0 && left <= 0) {
      return std::min(most_, std::exp2(static_cast<double>(i + 1) / 8) * 1e-6);
    }
  }
  return most_;
}

}  // namespace millrace
