#include "packed_fields.h"

#include <fmt/format.h>
#include <millrace/error.h>
#include <millrace/sample.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace millrace::python {
namespace {

nb::object text_in(const std::string& utf8) {
  auto made =
      nb::steal(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "strict"));
  if (!made.is_valid()) nb::raise_python_error();
  return made;
}

// Builds the value of a document from its events.
class built_value final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return put(nb::none()); }
  bool boolean(bool is) override { return put(nb::bool_(is)); }
  bool number_integer(std::int64_t is) override { return put(nb::int_(is)); }
  bool number_unsigned(std::uint64_t is) override { return put(nb::int_(is)); }
  bool number_float(double is, const std::string& /*as_written*/) override {
    return put(nb::float_(is));
  }
  bool string(std::string& is) override { return put(text_in(is)); }
  bool binary(nlohmann::json::binary_t& is) override {
    if (is.has_subtype()) {
      throw failure(error(errc::bad_field, fmt::format("a value of the extension type {}",
                                                       static_cast<std::int8_t>(is.subtype())))
                        .hint("decode its bytes, by msgpack.unpackb() for one"));
    }
    return put(nb::bytes(static_cast<const void*>(is.data()), is.size()));
  }
  bool key(std::string& is) override {
    keys_.push_back(text_in(is));
    return true;
  }
  bool start_object(std::size_t /*items*/) override { return open(nb::dict()); }
  bool start_array(std::size_t /*items*/) override { return open(nb::list()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*why*/) override {
    return false;
  }

  nb::object take() { return std::move(root_); }

 private:
  bool put(nb::object one) {
    if (open_.empty()) {
      root_ = std::move(one);
    } else if (nb::isinstance<nb::list>(open_.back())) {
      nb::borrow<nb::list>(open_.back()).append(one);
    } else {
      open_.back()[keys_.back()] = one;
      keys_.pop_back();
    }
    return true;
  }
  bool open(nb::object one) {
    open_.push_back(std::move(one));
    return true;
  }
  bool close() {
    nb::object done = std::move(open_.back());
    open_.pop_back();
    return put(std::move(done));
  }

  nb::object root_;
  std::vector<nb::object> open_;
  std::vector<nb::object> keys_;  // of the objects that are open, each once a value follows
};

nb::object packed_value(const std::string& extension, const nb::bytes& content) {
  const std::string_view text(static_cast<const char*>(content.data()), content.size());
  decode_field(extension, bytes::unowned(text)).value();  // bounds its depth and its memory
  using input = nlohmann::json::input_format_t;
  built_value out;
  const input format = extension == "cbor" ? input::cbor : input::msgpack;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &out, format)) {
    throw failure(error(errc::bad_field, "not " + extension));
  }
  return out.take();
}

// The bytes of a character in Python's text that has the bytes of `part`.
std::uint64_t width_of(std::string_view part) {
  const auto most =
      std::ranges::max(part, {}, [](char c) { return static_cast<unsigned char>(c); });
  const auto greatest = static_cast<unsigned char>(most);
  return greatest >= 0xF0 ? 4 : greatest >= 0xC4 ? 2 : 1;
}

// The bytes of the characters of a string, which grows while it is read where it has escapes: one
// may be of any character.
std::uint64_t string_needs(std::string_view part) {
  if (part.empty()) return 0;
  if (part.find("\\u") != std::string_view::npos) return 5 * part.size();
  const std::uint64_t whole = width_of(part) * part.size();
  return part.find('\\') == std::string_view::npos ? whole : whole + whole / 4;
}

// About the memory that json.loads() takes at most for a text in UTF-8, in bytes, by the marks of
// the text alone: also of what json.loads() has beyond JSON, and of what it will refuse. The
// figures are those of CPython's objects with their places in lists and dicts, which grow by half;
// keys that are the same share one object.
std::uint64_t json_needs(std::string_view text) {
  constexpr std::uint64_t scalar_bytes = 64;
  constexpr std::uint64_t string_bytes = 88;  // without its characters
  constexpr std::uint64_t list_bytes = 112;
  constexpr std::uint64_t dict_bytes = 256;
  constexpr std::uint64_t new_key_bytes = 128;   // beyond those of a string
  constexpr std::uint64_t known_key_bytes = 48;  // of a dict alone
  constexpr std::size_t most_keys = 100'000;     // that are remembered
  if (text.empty()) return 0;
  const std::uint64_t width = width_of(text);
  // json.loads() makes it a text first, wide ones by way of a narrow one.
  std::uint64_t needed = text.size() * (width > 1 ? width + 2 : 1);
  std::unordered_set<std::size_t> keys;  // their hashes
  bool in_scalar = false;
  bool after_string = false;  // which a ':' makes a key: a value follows it
  std::string_view part;      // that string
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char mark = text[at];
    const bool is_space = mark == ' ' || mark == '\n' || mark == '\t' || mark == '\r';
    if (mark == '"') {
      const std::size_t begin = ++at;
      while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
      part = text.substr(begin, std::min(at, text.size()) - begin);
      needed += string_bytes + string_needs(part);
    } else if (mark == ':' && after_string) {
      // Of many, all further ones count as new.
      const std::size_t hash = std::hash<std::string_view>()(part);
      const bool is_new = keys.size() < most_keys ? keys.insert(hash).second : !keys.contains(hash);
      needed += is_new ? new_key_bytes : known_key_bytes;
      if (!is_new) needed -= string_bytes + string_needs(part);
    } else if (mark == '[' || mark == '{') {
      needed += mark == '[' ? list_bytes : dict_bytes;
    }
    after_string = mark == '"' || (after_string && is_space);
    const bool was_in_scalar = in_scalar;
    in_scalar = !is_space && std::string_view("\"[]{}:,").find(mark) == std::string_view::npos;
    // Beyond the first digits, a number takes as many bytes as its text once more, at most.
    if (in_scalar) needed += was_in_scalar ? 1 : scalar_bytes;
  }
  return needed;
}

}  // namespace

void bind_packed_fields(nb::module_& to) {
  to.def(
      "json_needs",
      [](const nb::bytes& content) {
        return json_needs({static_cast<const char*>(content.data()), content.size()});
      },
      nb::arg("content"));
  to.def("packed_value", &packed_value, nb::arg("extension"), nb::arg("content"));
}

}  // namespace millrace::python
