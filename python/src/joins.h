#pragma once

#include <nanobind/nanobind.h>

#include "spec.h"

namespace millrace::python {

// Adds the class Table, the methods of Spec that take tables and companion shards, and
// read_object().
void bind_joins(nanobind::module_& to, nanobind::class_<spec>& made);

}  // namespace millrace::python
