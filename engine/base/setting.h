#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// Type of a variable's value: bytes ("64M"), a whole number, seconds, one of several words, a word
// or a number, any text.
enum class setting_type { size, integer, seconds, choice, choice_or_integer, text };

// One MILLRACE_ variable: what it may be set to, and what it is for.
struct setting {
  std::string_view name;                   // "MILLRACE_MEMORY"
  setting_type type = setting_type::text;  // what its text is parsed as
  double least = 0;               // in bytes, units or seconds; unused for choices and texts
  double most = 0;                // in the same unit
  std::string_view choices = {};  // "auto|uring|pread"
  std::string_view meaning = {};  // one clause, for lists of variables
  std::string_view group = {};    // under which it is listed: "Cache"
  // The value without the secrets that it may hold. Null: redacted() hides them.
  std::string (*shown)(const std::string& value) = nullptr;
  std::string initial = {};  // as a user writes it; "auto" if millrace chooses
};

// A variable that is a number of bytes from `least` to `most`. Settings are made without their
// defaults, which come from the options that they set (option_list.h).
setting size_setting(std::string_view name, std::size_t least, std::size_t most,
                     std::string_view meaning);
// A variable that is a whole number from `least` to `most`.
setting integer_setting(std::string_view name, int least, int most, std::string_view meaning);
// A variable that is a number of seconds from `least` to `most`.
setting seconds_setting(std::string_view name, double least, double most, std::string_view meaning);
// A variable that is one of `choices`, which are separated by '|'. For on and off it may also be
// true, yes or 1, and false, no or 0.
setting choice_setting(std::string_view name, std::string_view choices, std::string_view meaning);
// A variable that is any text but an empty one. `shown` as in setting.
setting text_setting(std::string_view name, std::string_view meaning,
                     std::string (*shown)(const std::string&) = nullptr);

// A variable of other programs that millrace reads as well. Its value may be a secret.
struct foreign_variable {
  std::string_view name;     // "https_proxy"
  std::string_view meaning;  // one clause, for lists of variables
};

// The value of a variable that is set.
struct setting_value {
  std::string text;   // of a switch as `choices` has it, whatever the user wrote: "on" for "true"
  double number = 0;  // 0 for "auto", and for a word of setting_type::choice_or_integer
};

// The value that `text` means; nullopt if it is not one of the setting's values. Pure.
std::optional<setting_value> parse_setting(const setting& s, const std::string& text);

// "auto, or a size from 64.0 KiB to 1.0 GiB". Pure.
std::string range_of(const setting& s);

// 2097152 as "2M": as a user would write it. Pure.
std::string short_bytes(double bytes);

// The position of `text` among the choices; their number if it is not one. Pure.
std::size_t choice_index(const setting& s, std::string_view text);
// The choice at `index`; throws std::out_of_range for another one.
std::string choice_at(const setting& s, std::size_t index);

}  // namespace millrace
