#pragma once

#include <nanobind/nanobind.h>

namespace millrace::python {

// Makes every `failure` an exception of the package, in the words of its arguments. Binds kinds(),
// the names of all kinds of errors.
void bind_errors(nanobind::module_& to);

}  // namespace millrace::python
