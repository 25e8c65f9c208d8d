#pragma once

namespace millrace {

// Decides how many threads of a pool take work, so that a consumer is fed by the fewest: as many as
// were busy, and a tenth more. Where the consumer waits and all threads work, half of them are
// added; they become fewer only after some calm looks, and not soon to a number that starved the
// consumer. Pure: it knows only what it is told. One thread.
class pool_controller {
 public:
  // Starts with all, so that the first items come soon.
  explicit pool_controller(int most) : most_(most), threads_(most) {}

  // Since the look before.
  struct look {
    double seconds = 0;
    double waited = 0;  // of them, by the consumer
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
