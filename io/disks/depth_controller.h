#pragma once

#include <cstddef>

namespace millrace {

// Chooses how many reads a device gets at once: more while that raises the rate, fewer when it only
// makes each read wait longer. Hill climbing by doubling over windows of reads that were made with
// the device kept at the depth.
//
//   growing    each window at twice the depth before; ends when a window brings less than 4 % more
//   settled    at the least depth that was within 4 % of the best; grows again after 64 windows, or
//              shrinks when latency doubles without the rate having grown
//
// Pure: the caller supplies the time.
class depth_controller {
 public:
  // `fixed`: the depth that the user has set; 0: by measurement, from 1 to `most`, beginning with
  // `initial`.
  depth_controller(int fixed, int most, int initial = 4);

  int depth() const { return depth_; }
  // A read of `bytes` has ended at `now_s` seconds, after `latency_s`. `saturated`: another read
  // was waiting for its turn, so that the depth was what limited. Windows in which it mostly was
  // not say nothing.
  void completed(std::size_t bytes, double now_s, double latency_s, bool saturated);

 private:
  void judge(double rate, double latency);

  int depth_;
  int most_;
  bool fixed_;
  bool growing_ = true;
  int settled_windows_ = 0;
  double best_rate_ = 0;        // of the depth before
  double settled_latency_ = 0;  // when it settled
  // The window under way.
  int reads_ = 0;
  int saturated_ = 0;
  double begin_s_ = -1;
  double bytes_ = 0;
  double latency_sum_ = 0;
};

}  // namespace millrace
