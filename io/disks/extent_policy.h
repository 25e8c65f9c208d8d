#pragma once

#include <cstddef>

#include "engine/memory.h"
#include "io/disks/topology.h"

namespace millrace {

// Models a rotational device that reads one large extent at a time: it moves to it, then streams.
//
// With extents of E bytes, a rate of r bytes/s and a move of t seconds between two of them, a
// device gives E / (E + r t) of its rate. A consumer that wants from n shards at once needs n
// extents of memory: share of the rate, extent, open shards and memory are one equation.
struct disk_speed {
  double bytes_per_s = 0;
  double move_s = 0;

  // Of the device's rate, in (0, 1).
  double share_at(std::size_t extent_bytes) const;
  // The least extent that reaches `share` of the rate.
  std::size_t extent_for(double share) const;
};

inline constexpr std::size_t least_extent = 16_MiB;
inline constexpr std::size_t most_extent = 512_MiB;
// The share that extents aim for, and the one below which a budget is reported to cost rate.
inline constexpr double wanted_share = 0.975;
inline constexpr double expected_share = 0.95;

// A 7200-rpm disk, times the spindles, before anything is measured.
disk_speed usual_speed(int spindles);

// Learns a device's speed from its extents, and chooses their size: that of a usual disk with so
// many spindles, or more. A line through (bytes, seconds), least squares with older extents
// weighing less: its slope is the rate, its value at 0 the move. Extents differ in size, because
// files end; a usual move has a small say for ever. Pure.
class extent_controller {
 public:
  // `fixed_bytes`: the extent that the user has set; 0: by measurement.
  extent_controller(const storage& on, std::size_t fixed_bytes);

  // One extent of `size` bytes took `seconds` from its request to its end.
  void observed(std::size_t size, double seconds);

  const disk_speed& speed() const { return speed_; }
  std::size_t wanted() const;
  // The next extent: a third of that for the first few, so that all open shards have their first
  // samples soon.
  std::size_t next() const;

 private:
  struct sums {  // of weights, x (MB), y (s), x x and x y
    double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
    void add(double x, double y, double weight);
  };
  disk_speed usual_;
  disk_speed speed_;
  std::size_t fixed_;
  std::size_t stripe_;
  sums seen_;
  int turns_ = 0;
};

}  // namespace millrace
