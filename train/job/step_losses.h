#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>

#include "train/checkpoints/run_checkpoints.h"
#include "train/device/late_values.h"
#include "train/device/loss_watch.h"
#include "train/job/learner.h"
#include "train/loop/report.h"
#include "train/ranks/distributed.h"

namespace millrace {

// The losses of a run's steps: watched on the device, and read for the reports some steps later, so
// that the host does not wait for the device. One thread; refers to the reporter.
class step_losses {
 public:
  step_losses(c10::Device device, reporter& to);

  // The next step, and its report, which is given to the reporter: at once if it wants no loss of
  // this step, else when the loss has been read. A step without samples has none.
  void add(const learner::outcome& out, step_report report);
  enum class which : std::uint8_t {
    arrived,  // of the steps whose losses have come
    all,      // waits for the others
  };
  // Reports these steps. Returns whether their losses are finite.
  bool read(which steps);

  // The number of steps before the first whose loss is not finite, or of all steps. The host waits.
  std::int64_t finite() const { return watch_.finite(); }
  // The number of steps.
  std::int64_t seen() const { return watch_.seen(); }
  // That of the last step that has one; nullopt: none has. The host waits.
  std::optional<double> last() const;

 private:
  reporter& to_;
  c10::Device device_;
  loss_watch watch_;
  late_values values_;
  std::deque<step_report> unread_;
  at::Tensor last_;
};

// The steps that this process has taken.
struct steps_taken {
  std::int64_t first = 0;  // at which this process started or resumed
  std::int64_t now = 0;    // taken, before that too
};
// Called by all ranks: throws `failure` (bad_state) on all of them if a loss of any was not finite,
// naming the first such step, and what was saved before it.
void check_finite(const step_losses& losses, const steps_taken& steps, process_group& group,
                  run_checkpoints& saved);

}  // namespace millrace
