#pragma once

namespace millrace {

// Decides how many threads of a pool take work: as few as feed the consumer, that is, a tenth more
// than were busy. If the consumer waits while all threads work, it adds half as many. It removes
// threads only after several calm intervals, and does not soon return to a number that starved the
// consumer. Pure. One thread.
class pool_controller {
 public:
  // Starts with all threads, so that the first items come soon.
  explicit pool_controller(int most) : most_(most), threads_(most) {}

  // Figures since the previous call.
  struct look {
    double seconds = 0;
    double waited = 0;  // seconds, by the consumer
    double busy = 0;    // thread-seconds of work
  };
  // The number of threads from now on.
  int next(const look& seen);
  int threads() const { return threads_; }

 private:
  int most_;
  int threads_;
  int calm_looks_ = 0;
  double now_ = 0;  // seconds in all
  int too_few_ = 0;
  double too_few_until_ = 0;
  double avoided_for_ = 2;  // seconds; doubles each time
};

}  // namespace millrace
