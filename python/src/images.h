#pragma once

#include <nanobind/nanobind.h>

namespace millrace::python {

// Binds ImageRun: batches of images, as arrays that share the engine's memory.
void bind_images(nanobind::module_& to);

}  // namespace millrace::python
