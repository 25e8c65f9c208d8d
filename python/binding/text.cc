#include "python/binding/text.h"

namespace nb = nanobind;

namespace millrace::python {

nb::object text_of(std::string_view text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

std::string string_of(const nb::str& text) {
  const nb::object encoded =
      nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!encoded) throw nb::python_error();
  const auto content = nb::cast<nb::bytes>(encoded);
  return {static_cast<const char*>(content.data()), content.size()};
}

}  // namespace millrace::python
