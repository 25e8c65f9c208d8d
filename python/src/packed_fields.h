#pragma once

#include <nanobind/nanobind.h>

namespace millrace::python {

// packed_value(extension, content): the Python value of MessagePack (mp) or CBOR (cbor). Bytes stay
// bytes, and floats may be nan. Throws `failure` (bad_field) for what is neither, or has a value of
// an extension type, and Python's UnicodeDecodeError.
void bind_packed_fields(nanobind::module_& to);

}  // namespace millrace::python
