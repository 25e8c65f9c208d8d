#pragma once

#include <nanobind/nanobind.h>

namespace millrace::python {

// Makes every `failure` an exception of Python, of the class that set_error_maker()'s argument
// returns for it. Binds set_error_maker().
void bind_errors(nanobind::module_& to);

}  // namespace millrace::python
