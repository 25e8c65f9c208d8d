#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/check_option.h"
#include "engine/base/result.h"
#include "engine/base/settings.h"

namespace millrace {
namespace detail {

// Sets a field of each type from its variable, formats it for users, and checks it.
template <class T>
struct option_field;

template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>)
struct option_field<T> {
  static T from(const setting& /*s*/, const setting_value& v) { return static_cast<T>(v.number); }
  static std::string text(const setting& s, T value) {
    return value == 0 && s.least > 0 ? "auto" : short_bytes(static_cast<double>(value));
  }
};
template <>
struct option_field<int> {
  static int from(const setting& /*s*/, const setting_value& v) {
    return static_cast<int>(v.number);
  }
  static std::string text(const setting& s, int value) {
    return value == 0 && s.least > 0 ? "auto" : std::to_string(value);
  }
};
// A fraction; the variable is in percent.
template <>
struct option_field<double> {
  static double from(const setting& /*s*/, const setting_value& v) { return v.number / 100; }
  static std::string text(const setting& /*s*/, double value) { return option_text(value * 100); }
};
template <>
struct option_field<std::chrono::milliseconds> {
  static std::chrono::milliseconds from(const setting& /*s*/, const setting_value& v) {
    return std::chrono::milliseconds(static_cast<long long>(v.number * 1000));
  }
  static std::string text(const setting& /*s*/, std::chrono::milliseconds value) {
    return option_text(std::chrono::duration<double>(value).count());
  }
};
template <>
struct option_field<bool> {
  static bool from(const setting& /*s*/, const setting_value& v) {
    return v.text == "on" || v.text == "1";
  }
  static std::string text(const setting& s, bool value) {
    const std::string_view word = value ? "on" : "off";
    if (choice_index(s, word) == choice_index(s, "")) return value ? "1" : "0";
    return std::string(word);
  }
};
template <>
struct option_field<std::string> {
  static std::string from(const setting& s, const setting_value& v) {
    return v.text == "auto" && s.initial == "auto" ? "" : v.text;
  }
  static std::string text(const setting& /*s*/, const std::string& value) {
    return value.empty() ? "auto" : value;
  }
};
// Enumerators in the order of the choices.
template <class T>
  requires std::is_enum_v<T>
struct option_field<T> {
  static T from(const setting& s, const setting_value& v) {
    return static_cast<T>(choice_index(s, v.text));
  }
  static std::string text(const setting& s, T value) {
    return choice_at(s, static_cast<std::size_t>(value));
  }
};
// Unset for "auto"; 0 for other choices in place of a number.
template <class T>
struct option_field<std::optional<T>> {
  static std::optional<T> from(const setting& s, const setting_value& v) {
    if (v.text == "auto") return std::nullopt;
    return option_field<T>::from(s, v);
  }
  static std::string text(const setting& s, const std::optional<T>& value) {
    return value ? option_field<T>::text(s, *value) : "auto";
  }
};

}  // namespace detail

// The variables that set the fields of an options struct, which share the struct's defaults and
// ranges. Immutable once built.
template <class Options>
class option_list {
 public:
  // `name`: the struct's name in messages, such as "source_options".
  explicit option_list(std::string_view name) : name_(name) {}

  // Sets the group of the variables added after this.
  option_list& group(std::string_view heading) {
    group_ = heading;
    return *this;
  }

  // `field`: a pointer to member of the struct, or a function that returns a reference. `least`:
  // the minimum for programs, if it is below the sensible minimum for users.
  template <class Field>
  option_list& add(std::string_view field_name, Field field, setting about,
                   std::optional<double> least = std::nullopt) {
    using value = std::remove_cvref_t<std::invoke_result_t<Field, Options&>>;
    using kind = detail::option_field<value>;
    const Options initial{};
    about.initial = kind::text(about, std::invoke(field, initial));
    return add_checked(
        std::move(about),
        [field](const setting& s, const setting_value& v, Options& o) -> result<void> {
          std::invoke(field, o) = kind::from(s, v);
          return {};
        },
        [field, name = qualified(field_name), least](const setting& s, const Options& o) {
          check_value(s, least.value_or(s.least), name, std::invoke(field, o));
        },
        qualified(field_name));
  }

  // A field that `read` (`Options&, const std::string&` to `result<void>`) parses from the
  // variable's text. The default is "auto", an empty text.
  template <class Read>
  option_list& add_text(setting about, Read read) {
    about.initial = "auto";
    return add_checked(
        std::move(about),
        [read](const setting& /*s*/, const setting_value& v, Options& o) -> result<void> {
          return read(o, v.text == "auto" ? std::string() : v.text);
        },
        [](const setting& /*s*/, const Options& /*o*/) {});
  }

  // Adds the options nested in a field of the struct.
  template <class Part>
  option_list& add_part(Part Options::* field, const option_list<Part>& part) {
    for (const auto& e : part.entries_) {
      add_checked(
          e.about,
          [field, e](const setting& s, const setting_value& v, Options& o) {
            return e.read(s, v, o.*field);
          },
          [field, e](const setting& s, const Options& o) { e.check(s, o.*field); }, e.field);
    }
    return *this;
  }

  // Each variable once, even if it sets several fields.
  std::vector<setting> all() const {
    std::vector<setting> list;
    for (const entry& e : entries_) {
      if (std::ranges::find(list, e.about.name, &setting::name) == list.end()) {
        list.push_back(e.about);
      }
    }
    return list;
  }

  // The fields, as messages name them ("http_options.attempts"), and their variables. Without those
  // of add_text().
  std::vector<std::pair<std::string, std::string_view>> fields() const {
    std::vector<std::pair<std::string, std::string_view>> list;
    for (const entry& e : entries_) {
      if (!e.field.empty()) list.emplace_back(e.field, e.about.name);
    }
    return list;
  }

  // Sets the fields whose variables are set. Fails with bad_setting for an invalid text.
  result<void> read(const settings& from, Options& to) const {
    for (const entry& e : entries_) {
      if (const setting_value* v = from.find(e.about.name)) {
        if (auto done = e.read(e.about, *v, to); !done) return done;
      }
    }
    return {};
  }

  // Throws `failure` (usage) for a field out of range.
  void check(const Options& o) const {
    for (const entry& e : entries_) e.check(e.about, o);
  }

 private:
  template <class>
  friend class option_list;

  struct entry {
    setting about;
    std::function<result<void>(const setting&, const setting_value&, Options&)> read;
    std::function<void(const setting&, const Options&)> check;
    std::string field;  // qualified; empty: of add_text()
  };

  std::string qualified(std::string_view field) const {
    return std::string(name_) + "." + std::string(field);
  }

  template <class Read, class Check>
  option_list& add_checked(setting about, Read read, Check check, std::string field = {}) {
    if (about.group.empty()) about.group = group_;
    entries_.push_back({std::move(about), std::move(read), std::move(check), std::move(field)});
    return *this;
  }

  template <class T>
  static void check_value(const setting& s, double from, const std::string& name, const T& value) {
    if constexpr (std::same_as<T, std::chrono::milliseconds>) {
      const auto ms = [](double x) {
        return std::chrono::milliseconds(static_cast<long long>(x * 1000));
      };
      check_option(name, value, ms(from), ms(s.most));
    } else if constexpr (std::same_as<T, double>) {
      check_option(name, value, from / 100, s.most / 100);
    } else if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool>) {
      const auto least = static_cast<T>(from);
      if (s.initial == "auto") return check_option_or_0(name, value, least, static_cast<T>(s.most));
      check_option(name, value, least, static_cast<T>(s.most));
    } else if constexpr (std::same_as<T, std::optional<int>>) {
      if (value) check_option(name, *value, 0, static_cast<int>(s.most));
    }
  }

  std::string_view name_;
  std::string_view group_;
  std::vector<entry> entries_;
};

}  // namespace millrace
