#include "io/disks/extent_policy.h"

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"

namespace millrace {
namespace {

constexpr double memory = 0.98;  // weight of earlier extents, at each new one
constexpr double usual_weight = 1;
constexpr double mega = 1e6;
constexpr double least_move = 0.0002;
constexpr double most_move = 0.050;
constexpr std::size_t unit = 1_MiB;

}  // namespace

double disk_speed::share_at(std::size_t extent_bytes) const {
  const auto e = static_cast<double>(extent_bytes);
  return e / (e + bytes_per_s * move_s);
}

std::size_t disk_speed::extent_for(double share) const {
  return static_cast<std::size_t>(share / (1 - share) * bytes_per_s * move_s);
}

disk_speed usual_speed(int spindles) {
  return {.bytes_per_s = 200e6 * spindles, .move_s = 0.007};
}

extent_controller::extent_controller(const storage& on, std::size_t fixed_bytes)
    : usual_(usual_speed(on.spindles)),
      speed_(usual_),
      fixed_(fixed_bytes),
      stripe_(stripe_bytes(on)) {}

void extent_controller::sums::add(double x, double y, double weight) {
  n += weight;
  sx += weight * x;
  sy += weight * y;
  sxx += weight * x * x;
  sxy += weight * x * y;
}

void extent_controller::observed(std::size_t size, double seconds) {
  ++turns_;
  constexpr std::size_t too_short_to_tell = 4_MiB;
  if (size < too_short_to_tell) return;
  for (double* sum : {&seen_.n, &seen_.sx, &seen_.sy, &seen_.sxx, &seen_.sxy}) *sum *= memory;
  // One exceptional turn does not change the estimate; many of them do.
  const double expected = speed_.move_s + static_cast<double>(size) / speed_.bytes_per_s;
  seconds = std::clamp(seconds, expected / 1.25, expected * 1.25);
  seen_.add(static_cast<double>(size) / mega, seconds, 1);
  // A short extent at the usual speed never loses weight: if all extents have about one size, it
  // determines the time of a move.
  sums all = seen_;
  const double x = 1.0;
  all.add(x, usual_.move_s + x * mega / usual_.bytes_per_s, usual_weight);
  const double slope = (all.n * all.sxy - all.sx * all.sy) / (all.n * all.sxx - all.sx * all.sx);
  speed_.bytes_per_s = mega / std::max(slope, 1e-6);
  speed_.move_s = std::clamp((all.sy - slope * all.sx) / all.n, least_move, most_move);
}

std::size_t extent_controller::wanted() const {
  if (fixed_ > 0) return fixed_;
  // In steps above the extent of a usual disk: processes with slightly different measurements take
  // equal turns, and so get equal shares.
  constexpr double step = 1.5;
  constexpr double most_steps = 4;
  const auto usual = static_cast<double>(usual_.extent_for(wanted_share));
  const auto measured = static_cast<double>(speed_.extent_for(wanted_share));
  const double steps =
      std::clamp(std::round(std::log(measured / usual) / std::log(step)), 0.0, most_steps);
  const auto stepped = static_cast<std::size_t>(usual * std::pow(step, steps));
  const std::size_t best = std::max({stepped, least_extent, stripe_});
  return std::min((best + unit - 1) / unit * unit, most_extent);
}

std::size_t extent_controller::next() const {
  constexpr int first_turns = 8;  // usually one for each lane
  if (fixed_ > 0 || turns_ >= first_turns) return wanted();
  return std::max(wanted() / 3, least_extent);
}

}  // namespace millrace
