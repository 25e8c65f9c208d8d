#include "cli/read_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "tools/bench/plot.h"

namespace millrace::cli {

nlohmann::json read_report_json(const read_report& r) {
  const auto cpu = r.cpu_s_per_gb();
  return {{"bytes", r.bytes},
          {"seconds", r.seconds},
          {"mb_per_s", r.mb_per_s()},
          {"cpu_seconds", r.cpu_seconds},
          {"cpu_s_per_gb", cpu ? nlohmann::json(*cpu) : nlohmann::json()},
          {"memory_wait_seconds", r.counters.memory_wait_s},
          {"sources", sources_json(r.counters)},
          {"interval_seconds", r.interval_s},
          {"mb_per_s_over_time", r.rate_over_time},
          {"interrupted", r.interrupted}};
}

void print_rate(const read_report& r) {
  constexpr std::size_t plot_columns = 50;
  fmt::print("rate      {:.1f} MB/s: {} in {}\n", r.mb_per_s(), format_bytes(r.bytes),
             time_text(r.seconds));
  if (!r.rate_over_time.empty()) {
    fmt::print("          {} to {:.0f} MB/s, {:.1f} s in all\n",
               sparkline(r.rate_over_time, plot_columns),
               *std::ranges::max_element(r.rate_over_time), r.seconds);
  }
}

void print_cpu(const read_report& r) {
  if (const auto cpu = r.cpu_s_per_gb()) fmt::print("CPU       {:.3f} s/GB\n", *cpu);
}

}  // namespace millrace::cli
