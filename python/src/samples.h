#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace millrace {
struct sample;
}

namespace millrace::python {

// A text of an archive: bytes that are not UTF-8 become surrogates, as in names of files.
nanobind::object text_of(std::string_view text);
// The bytes of such a text. Throws nanobind::python_error (UnicodeEncodeError) for other
// surrogates.
std::string string_of(const nanobind::str& text);
// A sample as a dict: "__key__", "__url__", and the bytes of each field, copied, by its extension.
nanobind::dict dict_of(const sample& s);

// Binds SampleRun: samples as dicts, with their images decoded if that is asked for; and
// decode_field().
void bind_samples(nanobind::module_& to);

}  // namespace millrace::python
