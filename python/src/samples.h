#pragma once

#include <nanobind/nanobind.h>

namespace millrace {
struct sample;
}

namespace millrace::python {

// A sample as a dict: "__key__", "__url__", and the bytes of each field, copied, by its extension.
nanobind::dict dict_of(const sample& s);

// Binds SampleRun: samples as dicts, with their images decoded if that is asked for; and
// decode_field().
void bind_samples(nanobind::module_& to);

}  // namespace millrace::python
