#pragma once

#include <functional>
#include <optional>
#include <string>

#include "pipeline/plan.h"
#include "pipeline/sample.h"

namespace millrace {

// A cheap stage that handles samples one by one; allowed in lanes, before the shuffle, and after
// them. Returning nothing leaves the sample out. Where shards are drawn for ever and it leaves out
// all samples of all of them, the stage fails with no_samples.
struct sample_stage {
  std::string name;
  sample_function what;
};
lane_plan<sample> operator|(lane_plan<sample> front, sample_stage back);
plan<sample> operator|(plan<sample> front, sample_stage back);

}  // namespace millrace
