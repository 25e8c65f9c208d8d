#pragma once

#include <cstddef>

#include "engine/base/units.h"
#include "io/disks/topology.h"

namespace millrace {

// A model of a rotational device that reads one large extent at a time: it moves to it, then
// streams.
//
// With extents of E bytes, a rate of r bytes/s and t seconds for the move from one to the next, a
// device reaches E / (E + r t) of its rate. A consumer that reads n shards at once needs n extents
// of memory. One equation thus relates the share of the rate, the extent, the open shards and the
// memory.
struct disk_speed {
  double bytes_per_s = 0;
  double move_s = 0;

  // The share of the device's rate, in (0, 1), that extents of this size reach.
  double share_at(std::size_t extent_bytes) const;
  // The smallest extent that reaches `share` of the rate.
  std::size_t extent_for(double share) const;
};

inline constexpr std::size_t least_extent = 16_MiB;
inline constexpr std::size_t most_extent = 512_MiB;
// The share that extents aim for, and the share below which the user is warned of a small budget.
inline constexpr double wanted_share = 0.975;
inline constexpr double expected_share = 0.95;

// The assumed speed before anything is measured: a 7200-rpm disk, times the spindles.
disk_speed usual_speed(int spindles);

// Learns a device's speed from its extents, and chooses their size: the size for a usual disk with
// as many spindles, or a larger one. Fits a line through (bytes, seconds) by least squares, with
// less weight for older extents: its slope gives the rate, its value at 0 the move. Extents differ
// in size because files end; a short extent at the usual speed always keeps a small weight. Pure.
class extent_controller {
 public:
  // `fixed_bytes`: the extent that the user has set. 0: by measurement.
  extent_controller(const storage& on, std::size_t fixed_bytes);

  // Records an extent of `size` bytes that took `seconds` from its request to its end.
  void observed(std::size_t size, double seconds);

  const disk_speed& speed() const { return speed_; }
  std::size_t wanted() const;
  // The size of the next extent: a third of wanted() for the first few, so that all open shards
  // have their first samples soon.
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
