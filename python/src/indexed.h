#pragma once

#include <nanobind/nanobind.h>

namespace millrace::python {

// Binds Indexed: single samples by number.
void bind_indexed(nanobind::module_& to);

}  // namespace millrace::python
