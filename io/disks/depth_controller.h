#pragma once

#include <cstddef>

namespace millrace {

// Chooses how many reads a device gets at once: more while that raises the rate, fewer when it only
// makes each read wait longer. Climbs by doubling, and measures over windows of reads made while
// the device was kept at that depth.
//
//   growing    each window has twice the depth of the previous one; ends when a window gains less
//              than 4 %
//   settled    at the lowest depth within 4 % of the best; grows again after 64 windows, or
//              shrinks when latency doubles and the rate has not grown
//
// Pure: the caller supplies the time.
class depth_controller {
 public:
  // `fixed`: the depth that the user has set. 0: by measurement, from 1 to `most`, starting at
  // `initial`.
  depth_controller(int fixed, int most, int initial = 4);

  int depth() const { return depth_; }
  // Records a read of `bytes` that ended at `now_s` seconds, after `latency_s`. `saturated`:
  // another read was waiting for its turn, so the depth was the limit. Windows that were mostly
  // not saturated are ignored.
  void completed(std::size_t bytes, double now_s, double latency_s, bool saturated);

 private:
  void judge(double rate, double latency);

  int depth_;
  int most_;
  bool fixed_;
  bool growing_ = true;
  int settled_windows_ = 0;
  double best_rate_ = 0;        // of the previous depth
  double settled_latency_ = 0;  // when it settled
  // The current window.
  int reads_ = 0;
  int saturated_ = 0;
  double begin_s_ = -1;
  double bytes_ = 0;
  double latency_sum_ = 0;
};

}  // namespace millrace
