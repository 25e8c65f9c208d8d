#pragma once

#include <nanobind/nanobind.h>

namespace millrace::python {

// Binds Writer: samples into shards.
void bind_writer(nanobind::module_& to);

}  // namespace millrace::python
