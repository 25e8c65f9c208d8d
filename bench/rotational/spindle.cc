#include "bench/rotational/spindle.h"

#include <algorithm>
#include <cmath>

namespace millrace::rotational {

double disk_parameters::seek(double distance) const {
  const double c = (mean_seek - settle) / (8.0 / 15.0);
  return settle + c * std::sqrt(distance / stroke);
}

std::optional<spindle::service> spindle::serve() {
  if (pending_.empty()) return std::nullopt;
  auto next = pending_.begin();
  if (order_ == scheduling::elevator) {
    // What has arrived by the time the arm is free; at least the first.
    const double now = std::max(free_at_, next->arrival);
    const auto rank = [&](const part& p) {
      const bool behind = p.position < head_;
      return std::pair(behind, p.position);
    };
    for (auto it = pending_.begin(); it != pending_.end(); ++it) {
      if (it->arrival <= now && rank(*it) < rank(*next)) next = it;
    }
  }
  service s{.what = *next};
  pending_.erase(next);
  s.begin = std::max(free_at_, s.what.arrival);
  const std::uint64_t at = s.what.position;
  double access = 0;
  if (at >= head_ && at - head_ <= disk_.read_through) {
    access = static_cast<double>(at - head_) / disk_.rate;
  } else {
    s.sought = true;
    access = disk_.seek(static_cast<double>(at > head_ ? at - head_ : head_ - at)) + disk_.turn / 2;
  }
  s.end = s.begin + access + static_cast<double>(s.what.size) / disk_.rate;
  head_ = at + s.what.size;
  free_at_ = s.end;
  return s;
}

std::vector<stripe::piece> stripe::split(std::uint64_t offset, std::uint64_t size) const {
  const auto count = static_cast<std::uint64_t>(spindles);
  std::vector<piece> pieces;
  while (size > 0) {
    const std::uint64_t stripe_unit = offset / unit;
    const std::uint64_t within = offset % unit;
    const std::uint64_t n = std::min(size, unit - within);
    const int which = static_cast<int>(stripe_unit % count);
    const std::uint64_t position = stripe_unit / count * unit + within;
    const auto joined = std::ranges::find_if(pieces, [&](const piece& p) {
      return p.spindle == which && p.position + p.size == position;
    });
    if (joined != pieces.end()) {
      joined->size += n;
    } else {
      pieces.push_back({which, position, n});
    }
    offset += n;
    size -= n;
  }
  return pieces;
}

}  // namespace millrace::rotational
