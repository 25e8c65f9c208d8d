#include "pipeline/samples/label.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "engine/base/json_tree.h"
#include "engine/base/nesting.h"
#include "engine/base/parsed_number.h"
#include "engine/memory/work_memory.h"

namespace millrace {
namespace {

constexpr std::array<std::string_view, 5> usual{"cls", "cls2", "index", "inx", "id"};
constexpr std::string_view blanks = " \t\r\n\v\f";
constexpr std::size_t longest_shown = 32;

error in_sample(errc kind, const sample& s, std::string what) {
  return of_sample(s, error(kind, std::move(what)));
}

std::string extensions_of(const sample& s) {
  std::string out;
  for (const field& f : s.fields) out += (out.empty() ? "" : ", ") + f.extension;
  return out;
}

result<std::int64_t> integer_in(const sample& s, const field& f) {
  if (const auto value = python_integer(f.data.text())) return *value;
  return in_sample(errc::bad_label, s,
                   fmt::format("the field '{}' holds '{}', which is not an integer", f.extension,
                               f.data.text().substr(0, longest_shown)))
      .hint("decode_options.label names the field that holds the class");
}

result<std::int64_t> number_in_json(const sample& s, std::string_view path) {
  const field* f = s.find("json");
  if (f == nullptr) {
    return in_sample(errc::missing_field, s,
                     fmt::format("no field 'json' among {}", extensions_of(s)));
  }
  const auto text = f->data.text();
  if (const auto why = why_not_parsed(text)) {
    return in_sample(errc::bad_label, s, "the field 'json' is not read: " + *why)
        .hint(flatten_hint);
  }
  const auto parsed = json_tree::parse(text, {.most = ~std::size_t{0}, .take = take_work_memory});
  const json_tree* at = parsed ? &*parsed : nullptr;
  for (std::size_t from = 0; from <= path.size();) {
    const auto end = std::min(path.find('.', from), path.size());
    const std::string_view name = path.substr(from, end - from);
    from = end + 1;
    if (at != nullptr) at = at->find(name);
    if (at == nullptr) {
      return in_sample(errc::bad_label, s,
                       parsed ? fmt::format("the JSON has no '{}'", path)
                              : std::string("the field 'json' is not JSON"));
    }
  }
  if (const auto* const label = at->as<std::int64_t>()) return *label;
  return in_sample(errc::bad_label, s, fmt::format("'{}' in the JSON is not an integer", path));
}

result<std::int64_t> any_label_of(const sample& s, std::string_view which) {
  constexpr std::string_view json = "json:";
  if (which == "none") return -1;
  if (which.starts_with(json)) {
    auto label = metered([&] { return number_in_json(s, which.substr(json.size())); });
    if (label || !label.error().where().empty()) return label;
    return in_sample(label.error().kind(), s, label.error().what())
        .hint(label.error().what_to_do());
  }
  if (which == "auto") {
    for (const auto name : usual) {
      if (const field* f = s.find(name)) return integer_in(s, *f);
    }
    return in_sample(errc::missing_field, s,
                     fmt::format("no label among the fields {}", extensions_of(s)))
        .hint("decode_options.label names the field, or json:FIELD");
  }
  const field* f = s.find(which);
  if (f == nullptr) {
    return in_sample(errc::missing_field, s,
                     fmt::format("no field '{}' among {}", which, extensions_of(s)))
        .hint("decode_options.label names one of them, in lower case and without a first dot");
  }
  return integer_in(s, *f);
}

}  // namespace

std::optional<std::int64_t> python_integer(std::string_view text) {
  const auto first = std::min(text.find_first_not_of(blanks), text.size());
  text = text.substr(first, text.find_last_not_of(blanks) + 1 - first);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return parsed_number<std::int64_t>(text);
}

result<std::int64_t> label_of(const sample& s, std::string_view which, std::int64_t classes) {
  auto label = any_label_of(s, which);
  if (!label || classes == 0 || (*label >= 0 && *label < classes)) return label;
  return in_sample(errc::bad_label, s,
                   fmt::format("the label {} is not one of {} classes (0 to {})", *label, classes,
                               classes - 1))
      .hint("set decode_options.classes to the number of classes in the data");
}

}  // namespace millrace
