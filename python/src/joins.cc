#include "joins.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/binding/interruptible_calls.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

// Rows that are added once, then shared with the runs that use them.
struct table {
  std::shared_ptr<field_table> rows = std::make_shared<field_table>();

  // False if there is a row of this key already.
  bool add(const std::string& key, const std::vector<std::pair<std::string, nb::bytes>>& fields) {
    const auto [row, is_new] = rows->try_emplace(key);
    if (!is_new) return false;
    row->second.reserve(fields.size());
    for (const auto& [name, content] : fields) {
      std::string copy(static_cast<const char*>(content.data()), content.size());
      row->second.push_back({name, owned_bytes(std::move(copy))});
    }
    return true;
  }
};

missing_companion missing_of(const std::string& name) {
  if (name == "skip") return missing_companion::skip;
  if (name == "none") return missing_companion::none;
  if (name == "error") return missing_companion::error;
  throw failure(
      error(errc::usage, "missing is '" + name + "'").hint("give 'error', 'skip' or 'none'"));
}

nb::bytes read_object(const std::string& url) {
  const auto text = std::make_shared<std::string>();
  interruptible_calls waits;  // where a signal ends the wait, the read ends by itself
  waits.call([url, text] {
    engine eng(engine_options::from_environment());
    *text = read_text(eng, url);
  });
  return nb::bytes(static_cast<const void*>(text->data()), text->size());
}

}  // namespace

void bind_joins(nb::module_& to, nb::class_<spec>& made) {
  nb::class_<table>(to, "Table").def(nb::init<>()).def("add", &table::add);
  made.def("add_join",
           [](spec& s, const std::string& pattern, const std::string& missing,
              const std::string& fields) {
             s.joins.push_back(join(pattern, {.missing = missing_of(missing), .fields = fields}));
           })
      .def("add_table", [](spec& s, const table& t, const std::string& missing) {
        s.tables.emplace_back(t.rows, missing_of(missing));
      });
  to.def("read_object", &read_object);
}

}  // namespace millrace::python
