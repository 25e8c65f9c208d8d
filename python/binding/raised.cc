#include "python/binding/raised.h"

#include <millrace/engine.h>
#include <millrace/error.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <typeinfo>
#include <utility>

#include "python/binding/text.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

using words = std::function<std::string(const std::string&)>;

// millrace.errors.make: looked up once, when the package that has it is imported. Held for as long
// as the interpreter lives.
const nb::object& maker() {
  static const auto* held = new nb::object(nb::module_::import_("millrace.errors").attr("make"));
  return *held;
}

void raise(const error& why, const words& in_words) {
  error said = why;
  if (in_words) {  // neither URLs nor keys are words of the library
    said.reworded(in_words(why.what()));
    said.hint(in_words(why.what_to_do()));
  }
  try {
    const nb::object made =
        maker()(std::string(kind_name(why.kind())), text_of(said.message()), text_of(why.where()),
                why.byte_offset(), text_of(why.sample_key()), text_of(said.what_to_do()),
                why.is_retryable(), why.is_skippable(), exit_code(why.kind()), why.os_errno());
    PyErr_SetObject(made.type().ptr(), made.ptr());
  } catch (nb::python_error& e) {
    e.restore();
  }
}

}  // namespace

void speak_in(words in_words) {
  static words* held = nullptr;  // for as long as the interpreter lives
  if (held != nullptr) return;
  held = new words(std::move(in_words));
  if (*held) {  // what is logged within the sink goes to stderr
    set_log_sink([](std::string_view line) { log_notice((*held)(std::string(line))); });
  }
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void* of) {
        try {
          std::rethrow_exception(p);
        } catch (const failure& f) {
          // Modules share their translators, but not the library that they were linked with.
          if (&typeid(f) != &typeid(failure)) throw;
          raise(f.why(), *static_cast<const words*>(of));
        }
      },
      held);
}

}  // namespace millrace::python
