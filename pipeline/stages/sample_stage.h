#pragma once

#include <functional>
#include <optional>
#include <string>

#include "pipeline/plan/plan.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// A cheap stage that handles samples one by one; allowed in lanes, before the shuffle, and after
// them. Samples that a later stage held when a state was saved pass it again on resume. If shards
// are drawn forever and it leaves out all samples of all of them, the stage fails with no_samples.
// Example: docs/stages.md.
struct sample_stage {
  std::string name;  // in statistics and errors
  // Called on the I/O thread, and again for samples that are read again.
  sample_function what;
  // Called before that, on the same thread, for samples that are not read again: to count them. May
  // be null.
  std::function<void(run_context&, const sample&)> note = nullptr;
  // Promises that it leaves no sample out: each one comes, or fails. What broken shards lack is
  // then counted by an index.
  bool keeps_all = false;
};
// Appends it to lanes, for each of which it is called.
lane_plan<sample> operator|(lane_plan<sample> front, sample_stage back);
// Appends it after the lanes.
plan<sample> operator|(plan<sample> front, sample_stage back);

}  // namespace millrace
