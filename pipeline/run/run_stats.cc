#include "pipeline/run/run_stats.h"

#include <algorithm>
#include <utility>

namespace millrace {

stage_stats stage_stats::since(const stage_stats& before) const {
  // Times are estimates, which may shrink.
  const auto later = [](double now, double then) { return std::max(0.0, now - then); };
  return {.name = name,
          .items = items - before.items,
          .bytes = bytes - before.bytes,
          .busy = later(busy, before.busy),
          .waiting_input = later(waiting_input, before.waiting_input),
          .waiting_output = later(waiting_output, before.waiting_output)};
}

run_stats run_stats::since(const run_stats& before) const {
  run_stats out = *this;
  const std::size_t known = std::min(stages.size(), before.stages.size());
  for (std::size_t i = 0; i < known; ++i) out.stages[i] = stages[i].since(before.stages[i]);
  out.sources = sources.since(before.sources);
  out.seconds -= before.seconds;
  out.spine_cpu -= before.spine_cpu;
  out.pool_busy -= before.pool_busy;
  out.pool_cpu -= before.pool_cpu;
  return out;
}

void run_stats::add(const run_stats& later) {
  run_stats sum = later;
  const std::size_t known = std::min(stages.size(), later.stages.size());
  for (std::size_t i = 0; i < known; ++i) {
    stage_stats& stage = sum.stages[i];
    stage.items += stages[i].items;
    stage.bytes += stages[i].bytes;
    stage.busy += stages[i].busy;
    stage.waiting_input += stages[i].waiting_input;
    stage.waiting_output += stages[i].waiting_output;
  }
  sum.sources.add(sources);
  sum.seconds += seconds;
  sum.spine_cpu += spine_cpu;
  *this = std::move(sum);
}

}  // namespace millrace
