#include "pipeline/samples/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/json_tree.h"
#include "engine/base/nesting.h"
#include "engine/base/printable.h"
#include "engine/base/random.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/files/line_file.h"
#include "engine/memory/work_memory.h"
#include "io/unpack/unpack.h"
#include "pipeline/samples/label.h"
#include "pipeline/samples/npy.h"

namespace millrace {
namespace {

constexpr std::size_t largest_unpacked = 256_MiB;
constexpr std::size_t most_dimensions = npy_header::most_dimensions;

error bad_field(std::string what) {
  return error(errc::bad_field, std::move(what)).skippable();
}

// Matches a pattern with '*' and '?', in at most as many steps as the product of the lengths: on a
// mismatch only the last '*' takes another character; the ones before it need not.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t star = std::string_view::npos;
  std::size_t after_star = 0;
  for (std::size_t t = 0; t < text.size();) {
    const bool in_pattern = p < pattern.size();
    if (in_pattern && pattern[p] == '*') {
      star = p++;
      after_star = t;
    } else if (in_pattern && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::size_t item_bytes(std::string_view type) {
  if (type.size() < 2) return 0;
  std::size_t size = 0;
  const auto [end, failed] = std::from_chars(type.data() + 1, type.data() + type.size(), size);
  const bool known = std::string_view("biufc").find(type.front()) != std::string_view::npos;
  const bool is_size = failed == std::errc{} && end == type.data() + type.size();
  return known && is_size && size >= 1 && size <= 16 ? size : 0;
}

// Whether an array of this shape fills `size` bytes. Allocates nothing.
bool fills(const tensor& t, std::size_t size) {
  std::uint64_t count = item_bytes(t.type);
  if (count == 0 || t.shape.size() > most_dimensions) return false;
  for (const std::int64_t n : t.shape) {
    if (n < 0) return false;
    if (n > 0 && count > size / static_cast<std::uint64_t>(n) + 1) return false;
    count *= static_cast<std::uint64_t>(n);
  }
  return count == size;
}

result<tensor> decode_npy(const bytes& file) {
  auto header = read_npy_header(file.span());
  if (!header) return header.error();
  tensor out{.type = std::move(header->type),
             .shape = std::move(header->shape),
             .data = file.slice(header->size)};
  if (!fills(out, out.data.size())) {
    return bad_field(
        fmt::format("an array of type {} whose size does not match its shape", out.type));
  }
  return out;
}

result<tensors> decode_npz(const bytes& file) {
  auto files = unzip_all(file.span(), largest_unpacked);
  if (!files) return bad_field(files.error().what());
  tensors out;
  for (auto& [name, content] : *files) {
    auto one = decode_npy(owned_bytes(std::move(content)));
    if (!one) return one.error();
    out.emplace_back(name.ends_with(".npy") ? name.substr(0, name.size() - 4) : name,
                     std::move(*one));
  }
  return out;
}

// Takes a chunk of a tenbin file: "~TenBin~", its length, and its bytes, padded to 64.
std::optional<bytes> take_chunk(const bytes& file, std::size_t& at) {
  constexpr std::size_t head = 16;
  if (file.size() - at < head || file.slice(at, 8).text() != "~TenBin~") return std::nullopt;
  std::uint64_t size = 0;
  std::memcpy(&size, file.data() + at + 8, sizeof size);
  at += head;
  if (size > file.size() - at) return std::nullopt;
  bytes out = file.slice(at, static_cast<std::size_t>(size));
  at = std::min(file.size(), at + round_up(static_cast<std::size_t>(size), 64));
  return out;
}

// Format: webdataset/tenbin.py of WebDataset 1.0.
result<tensors> decode_tenbin(const bytes& file) {
  static constexpr std::array types{"f2", "f4", "f8", "i1", "i2", "i4",
                                    "i8", "u1", "u2", "u4", "u8"};
  tensors out;
  for (std::size_t at = 0; at < file.size();) {
    const auto head = take_chunk(file, at);
    const auto data = head ? take_chunk(file, at) : std::nullopt;
    if (!data || head->size() < 24 || head->size() % 8 != 0) return bad_field("not a tenbin file");
    std::vector<std::int64_t> words(head->size() / 8);
    std::memcpy(words.data(), head->data(), head->size());
    tensor one{.type = std::string(head->slice(0, 2).text()), .shape = {}, .data = *data};
    const std::string_view name = head->slice(8, 8).text();
    const auto dimensions = static_cast<std::size_t>(words[2]);
    if (dimensions != words.size() - 3) return bad_field("not a tenbin file");
    one.shape.assign(words.begin() + 3, words.end());
    if (std::ranges::find(types, one.type) == types.end() || !fills(one, data->size())) {
      return bad_field("an array whose size does not match its shape");
    }
    out.emplace_back(name.substr(0, name.find('\0')), std::move(one));
  }
  return out;
}

// Checks a document's events before it is built: excessive nesting would overflow the stack of code
// that walks the tree, and a stated number of items larger than the document would be allocated
// unchecked. Adds up what the tree and its text will take.
class json_bounds final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit json_bounds(std::size_t bytes) : bytes_(bytes) {}

  bool null() override { return needs(0); }
  bool boolean(bool /*is*/) override { return needs(0); }
  bool number_integer(std::int64_t /*is*/) override { return needs(0); }
  bool number_unsigned(std::uint64_t /*is*/) override { return needs(0); }
  bool number_float(double /*is*/, const std::string& /*as_written*/) override { return needs(0); }
  bool string(std::string& is) override { return needs(string_bytes + 4 * is.size()); }
  bool binary(nlohmann::json::binary_t& is) override {
    return needs(string_bytes + 2 * (key_bytes + value_bytes) + 20 * is.size());
  }
  bool key(std::string& is) override { return needs(key_bytes + 4 * is.size()); }
  bool start_object(std::size_t items) override { return opens(items); }
  bool start_array(std::size_t items) override { return opens(items); }
  bool end_object() override { return closes(); }
  bool end_array() override { return closes(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*why*/) override {
    return false;
  }

  // An upper bound, in bytes.
  std::size_t needed() const { return needed_; }
  bool is_too_deep() const { return depth_ > deepest_nesting; }

 private:
  static constexpr auto unstated = static_cast<std::size_t>(-1);
  // In a 64-bit build, with malloc's overhead. A value: in a list that has doubled, plus the list
  // it was moved from, plus its text in a string that has doubled. A string, a list or an object. A
  // node of an object.
  static constexpr std::size_t value_bytes = 3 * sizeof(json_tree) + std::size_t{3} * 26;
  static constexpr std::size_t string_bytes = 64;
  static constexpr std::size_t key_bytes = 96 + sizeof(json_tree);

  bool needs(std::size_t more) {
    needed_ += value_bytes + more;
    return true;
  }
  bool opens(std::size_t items) {
    needs(string_bytes);
    return ++depth_ <= deepest_nesting && (items == unstated || items <= bytes_);
  }
  bool closes() {
    --depth_;
    return true;
  }

  std::size_t bytes_;
  std::size_t needed_ = 0;
  int depth_ = 0;
};

result<value> as_json(std::string_view text, nlohmann::json::input_format_t format,
                      std::string_view what) {
  using input = nlohmann::json::input_format_t;
  json_bounds bounds(text.size());
  // The library recurses for each part of a CBOR string, without reporting an event.
  if (format == input::cbor && !is_bounded_cbor(text)) {
    return bad_field(
        fmt::format("not {}, or nested deeper than {} levels, or with an integer below -2^63", what,
                    deepest_nesting));
  }
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &bounds, format)) {
    if (!bounds.is_too_deep()) return bad_field(fmt::format("not {}", what));
    return bad_field(fmt::format("the {} is nested deeper than {} levels", what, deepest_nesting))
        .hint(flatten_hint);
  }
  if (!take_work_memory(bounds.needed())) return bad_field("no memory");
  using binary = json_tree::binary_format;
  const auto parsed = format == input::json   ? json_tree::parse(text, {.most = ~std::size_t{0}})
                      : format == input::cbor ? json_tree::parse(text, binary::cbor)
                                              : json_tree::parse(text, binary::message_pack);
  if (!parsed) return bad_field(fmt::format("not {}", what));
  return value(json_text{parsed->dump()});
}

template <class T>
result<value> as_value(result<T> decoded) {
  if (!decoded) return decoded.error();
  return value(std::move(*decoded));
}

enum class kind { raw, text, integer, json, msgpack, cbor, npy, npz, tenbin };

kind kind_of_field(std::string_view last) {
  // Never destroyed: threads use it until the process ends.
  static const auto& kinds = *new std::map<std::string_view, kind>{
      {"txt", kind::text},      {"text", kind::text},     {"transcript", kind::text},
      {"cls", kind::integer},   {"cls2", kind::integer},  {"class", kind::integer},
      {"count", kind::integer}, {"index", kind::integer}, {"inx", kind::integer},
      {"id", kind::integer},    {"json", kind::json},     {"jsn", kind::json},
      {"mp", kind::msgpack},    {"msg", kind::msgpack},   {"msgpack", kind::msgpack},
      {"cbor", kind::cbor},     {"npy", kind::npy},       {"npz", kind::npz},
      {"ten", kind::tenbin},    {"tb", kind::tenbin},     {"tenbin", kind::tenbin}};
  const auto it = kinds.find(last);
  return it == kinds.end() ? kind::raw : it->second;
}

result<value> decode_metered(std::string_view extension, const bytes& content);

}  // namespace

bool matches_any(std::string_view patterns, std::string_view extension) {
  for (std::size_t from = 0; from <= patterns.size();) {
    const auto end = std::min(patterns.find(';', from), patterns.size());
    if (matches(patterns.substr(from, end - from), extension)) return true;
    from = end + 1;
  }
  return false;
}

std::int64_t tensor::count() const {
  std::int64_t product = 1;
  for (const std::int64_t n : shape) product *= n;
  return product;
}

const value* record::find(std::string_view extension) const {
  for (const auto& [name, held] : fields) {
    if (name == extension) return &held;
  }
  return nullptr;
}

result<value> decode_field(std::string_view extension, const bytes& content) {
  return metered([&] { return decode_metered(extension, content); });
}

namespace {

result<value> decode_metered(std::string_view extension, const bytes& content) {
  const auto dot = extension.rfind('.');
  const std::string last = lowered(extension.substr(dot == extension.npos ? 0 : dot + 1));
  if (last == "gz" && dot != extension.npos) {
    auto unpacked = gunzip_all(content.span(), largest_unpacked);
    if (!unpacked) return bad_field(unpacked.error().what());
    return decode_metered(extension.substr(0, dot), owned_bytes(std::move(*unpacked)));
  }
  const auto text = content.text();
  switch (kind_of_field(last)) {
    case kind::raw:
      return value(content);
    case kind::text:
      if (!is_utf8(text)) return bad_field("not UTF-8 text");
      return value(std::string(text));
    case kind::integer: {
      const auto number = python_integer(text);
      if (!number) return bad_field("not an integer");
      return value(*number);
    }
    case kind::json:
      return as_json(text, nlohmann::json::input_format_t::json, "JSON");
    case kind::msgpack:
      return as_json(text, nlohmann::json::input_format_t::msgpack, "MessagePack");
    case kind::cbor:
      return as_json(text, nlohmann::json::input_format_t::cbor, "CBOR");
    case kind::npy:
      return as_value(decode_npy(content));
    case kind::npz:
      return as_value(decode_npz(content));
    case kind::tenbin:
      return as_value(decode_tenbin(content));
  }
  return value(content);
}

}  // namespace

result<record> decode_fields(const sample& s) {
  record out{.key = s.key, .fields = {}, .where = s.where, .url = s.url};
  for (const field& f : s.fields) {
    auto decoded = decode_field(f.extension, f.data);
    if (!decoded) {
      return of_sample(
          s, error(decoded.error().kind(),
                   fmt::format("the field '{}': {}", f.extension, decoded.error().what())));
    }
    out.fields.emplace_back(f.extension, std::move(*decoded));
  }
  return out;
}

std::function<result<tuple_of_values>(const record&)> to_tuple(std::vector<std::string> patterns) {
  return [patterns = std::move(patterns)](const record& r) -> result<tuple_of_values> {
    tuple_of_values out{.values = {}, .key = r.key, .where = r.where, .url = r.url};
    for (const std::string& p : patterns) {
      const value* found = nullptr;
      for (std::size_t from = 0; found == nullptr && from <= p.size();) {
        const auto end = std::min(p.find(';', from), p.size());
        found = r.find(std::string_view(p).substr(from, end - from));
        from = end + 1;
      }
      if (found == nullptr) {
        return error(errc::missing_field, fmt::format("no field '{}'", p))
            .at(r.url ? *r.url : "")
            .offset(static_cast<std::uint64_t>(r.where.offset))
            .key(r.key)
            .skippable();
      }
      out.values.push_back(*found);
    }
    return out;
  };
}

}  // namespace millrace
