#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace millrace::python {

// A text of the engine in the package's words. Any thread.
std::string words_of(const std::string& text);

// Makes every `failure` an exception of the package, in the words of its arguments. Binds kinds(),
// the names of all kinds of errors.
void bind_errors(nanobind::module_& to);

}  // namespace millrace::python
