#include "engine/base/json_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/nesting.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"

namespace millrace {
namespace {

using nlohmann::json;

class builder {
 public:
  explicit builder(const json_limit& limit) : limit_(limit) {}

  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  bool null() { return add(nullptr); }
  bool boolean(bool is) { return add(is); }
  bool number_integer(number_integer_t is) { return add(is); }
  bool number_unsigned(number_unsigned_t is) {
    if (std::in_range<std::int64_t>(is)) return add(static_cast<std::int64_t>(is));
    return add(is);
  }
  bool number_float(number_float_t is, const string_t& /*as_written*/) { return add(is); }
  bool string(string_t& is) { return needs(is.capacity()) && add(std::move(is)); }
  bool binary(binary_t& is) {
    json_tree::object out;
    out.emplace("bytes", json_tree::integers(is.begin(), is.end()));
    out.emplace("subtype", is.has_subtype() ? json_tree(static_cast<std::int64_t>(is.subtype()))
                                            : json_tree());
    return add(std::move(out));
  }
  bool key(string_t& is) {
    if (!needs(member_bytes + is.capacity())) return false;
    open_.back().name = std::move(is);
    return true;
  }
  bool start_object(std::size_t /*items*/) { return open(json_tree::object()); }
  bool start_array(std::size_t /*items*/) { return open(json_tree::integers()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const json::exception& /*why*/) {
    return false;
  }

  json_tree take() { return std::move(whole_); }
  bool is_too_large() const { return is_too_large_; }

 private:
  struct level {
    json_tree::anything of;
    std::string name = {};  // of the next member
  };

  // For 64-bit builds, with malloc's overhead: an item of a doubling list plus the one it was moved
  // from; the node of a member.
  static constexpr std::size_t item_bytes = 3 * sizeof(json_tree);
  static constexpr std::size_t number_bytes = 3 * sizeof(std::int64_t);
  static constexpr std::size_t member_bytes = 72 + sizeof(json_tree);

  bool needs(std::size_t bytes) {
    is_too_large_ = bytes > limit_.most - needed_ || (limit_.take && !limit_.take(bytes));
    needed_ += bytes;
    return !is_too_large_;
  }

  bool open(json_tree::anything of) {
    open_.push_back({std::move(of)});
    return true;
  }
  bool close() {
    json_tree::anything of = std::move(open_.back().of);
    open_.pop_back();
    return add(std::move(of));
  }
  // If two members have one name, the later one counts.
  bool add(json_tree::anything of) {
    if (open_.empty()) {
      whole_ = json_tree(std::move(of));
    } else if (auto* const to = std::get_if<json_tree::object>(&open_.back().of)) {
      to->insert_or_assign(std::move(open_.back().name), json_tree(std::move(of)));
    } else {
      return add_item(open_.back().of, std::move(of));
    }
    return true;
  }
  bool add_item(json_tree::anything& to, json_tree::anything of) {
    if (auto* const numbers = std::get_if<json_tree::integers>(&to)) {
      if (const auto* const one = std::get_if<std::int64_t>(&of)) {
        if (!needs(number_bytes)) return false;
        numbers->push_back(*one);
        return true;
      }
      if (!needs(numbers->size() * item_bytes)) return false;
      json_tree::list items;
      for (const std::int64_t one : *numbers) items.emplace_back(one);
      to = std::move(items);
    }
    if (!needs(item_bytes)) return false;
    std::get<json_tree::list>(to).emplace_back(std::move(of));
    return true;
  }

  json_limit limit_;
  std::size_t needed_ = 0;
  bool is_too_large_ = false;
  std::vector<level> open_;
  json_tree whole_;
};

}  // namespace

result<json_tree> json_tree::read(std::string_view text, const json_limit& limit) {
  if (const auto why = why_not_parsed(text)) return error(errc::bad_field, *why);
  builder made(limit);
  if (json::sax_parse(text.begin(), text.end(), &made)) return made.take();
  if (!made.is_too_large()) return error(errc::bad_field, "it is not JSON");
  return error(errc::too_large,
               fmt::format("parsed, its {} bytes of JSON take more than the {} that are allowed "
                           "for it",
                           text.size(), format_bytes(limit.most)));
}

std::optional<json_tree> json_tree::parse(std::string_view text, const json_limit& limit) {
  auto read_as = read(text, limit);
  return read_as ? std::optional(std::move(*read_as)) : std::nullopt;
}

std::optional<json_tree> json_tree::parse(std::string_view bytes, binary_format format) {
  const auto which =
      format == binary_format::cbor ? json::input_format_t::cbor : json::input_format_t::msgpack;
  builder made(json_limit{.most = ~std::size_t{0}});  // counted by the caller
  if (!json::sax_parse(bytes.begin(), bytes.end(), &made, which)) return std::nullopt;
  return made.take();
}

const json_tree* json_tree::find(std::string_view name) const {
  const auto* const members = as<object>();
  if (members == nullptr) return nullptr;
  const auto found = members->find(name);
  return found == members->end() ? nullptr : &found->second;
}

std::string_view json_tree::text_of(std::string_view name) const {
  const json_tree* const member = find(name);
  const auto* const text = member == nullptr ? nullptr : member->as<std::string>();
  return text == nullptr ? std::string_view() : *text;
}

std::string json_tree::dump() const {
  struct written {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool is) const { return is ? "true" : "false"; }
    std::string operator()(std::int64_t is) const { return fmt::format("{}", is); }
    std::string operator()(std::uint64_t is) const { return fmt::format("{}", is); }
    std::string operator()(double is) const { return json(is).dump(); }
    std::string operator()(const std::string& is) const { return json_text_of(is); }
    std::string operator()(const integers& of) const {
      return fmt::format("[{}]", fmt::join(of, ","));
    }
    std::string operator()(const list& of) const {
      std::string out = "[";
      for (const json_tree& item : of) {
        if (out.size() > 1) out += ',';
        out += item.dump();
      }
      return out + ']';
    }
    std::string operator()(const object& of) const {
      std::string out = "{";
      for (const auto& [name, member] : of) {
        if (out.size() > 1) out += ',';
        out += json_text_of(name) + ':' + member.dump();
      }
      return out + '}';
    }
  };
  return std::visit(written{}, of_);
}

std::string json_tree::excerpt() const {
  constexpr std::size_t most = 100;
  std::string text = printable(redacted(dump()));
  std::size_t end = 0;
  for (std::size_t count = 0; end < text.size() && count < most; ++count) {
    const auto is_continued = [&] {
      return (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80;
    };
    ++end;
    while (end < text.size() && is_continued()) ++end;
  }
  return end < text.size() ? text.substr(0, end) + "..." : text;
}

std::string json_text_of(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace millrace
