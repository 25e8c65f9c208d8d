#pragma once

#include <nlohmann/json_fwd.hpp>

#include "tools/bench/measure.h"

namespace millrace::cli {

// The members of --json that bench disk and bench http have in common.
nlohmann::json read_report_json(const read_report& r);
// The lines "rate": the mean, and a plot over time.
void print_rate(const read_report& r);
// The line "CPU"; nothing if nothing was read.
void print_cpu(const read_report& r);

}  // namespace millrace::cli
