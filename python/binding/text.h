#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace millrace::python {

// A text of an archive: bytes that are not UTF-8 become surrogates, as in names of files.
nanobind::object text_of(std::string_view text);
// The bytes of such a text. Throws nanobind::python_error (UnicodeEncodeError) for other
// surrogates.
std::string string_of(const nanobind::str& text);

}  // namespace millrace::python
