#pragma once

#include <millrace/engine.h>
#include <nanobind/nanobind.h>

namespace millrace::python {

// The figures of a run, as a dict of numbers; times in seconds. `waited`: by the consumer.
nanobind::dict dict_of(const run_stats& s, double waited);
// The counts of a run, as a dict.
nanobind::dict dict_of(const ledger& counts);

}  // namespace millrace::python
