#include "errors.h"

#include <millrace/error.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "samples.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

// Held for as long as the interpreter lives.
nb::object& maker() {
  static auto* held = new nb::object();
  return *held;
}

void raise(const failure& f) {
  const error& why = f.why();
  try {
    const nb::object made =
        maker()(std::string(kind_name(why.kind())), text_of(why.message()), text_of(why.where()),
                why.byte_offset(), text_of(why.sample_key()), text_of(why.what_to_do()),
                why.is_retryable(), why.is_skippable(), exit_code(why.kind()));
    PyErr_SetObject(made.type().ptr(), made.ptr());
  } catch (nb::python_error& e) {
    e.restore();
  }
}

}  // namespace

void bind_errors(nb::module_& to) {
  // The names of all kinds.
  to.def("kinds", [] {
    nb::list names;
    for (int k = 0; k <= static_cast<int>(errc::internal); ++k) {
      const std::string_view name = kind_name(static_cast<errc>(k));
      names.append(nb::str(name.data(), name.size()));
    }
    return names;
  });
  to.def("set_error_maker", [](nb::object f) { maker() = std::move(f); });
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const failure& f) {
      raise(f);
    }
  });
}

}  // namespace millrace::python
