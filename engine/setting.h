#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace {

enum class setting_type { size, integer, seconds, choice, choice_or_integer, text };

// One MILLRACE_ variable: what it may be set to, and what it is for.
struct setting {
  std::string_view name;
  setting_type type = setting_type::text;
  double least = 0;  // in bytes, units or seconds; unused for choices and texts
  double most = 0;
  std::string_view choices = {};  // "auto|uring|pread"
  std::string_view meaning = {};
  std::string_view group = {};  // under which it is listed: "Cache"
  // The value without the secrets that it may hold. Null: redacted() hides them.
  std::string (*shown)(const std::string& value) = nullptr;
  std::string initial = {};  // as a user writes it; "auto" where millrace chooses
};

// Settings without their defaults, which come from the options that they set (option_list.h).
setting size_setting(std::string_view name, std::size_t least, std::size_t most,
                     std::string_view meaning);
setting integer_setting(std::string_view name, int least, int most, std::string_view meaning);
setting seconds_setting(std::string_view name, double least, double most, std::string_view meaning);
setting choice_setting(std::string_view name, std::string_view choices, std::string_view meaning);
setting text_setting(std::string_view name, std::string_view meaning,
                     std::string (*shown)(const std::string&) = nullptr);

// A variable of other programs that millrace reads as well. Its value may be a secret.
struct foreign_variable {
  std::string_view name;
  std::string_view meaning;
};

struct setting_value {
  std::string text;   // of a switch as `choices` has it, whatever the user wrote: "on" for "true"
  double number = 0;  // 0 for "auto", and for a choice where there could be a number
};

// The value that `text` means; nullopt if it is not one of the setting's values. Pure.
std::optional<setting_value> parse_setting(const setting& s, const std::string& text);

// "auto, or a size from 64.0 KiB to 1.0 GiB". Pure.
std::string range_of(const setting& s);

// 2097152 as "2M": as a user would write it. Pure.
std::string short_bytes(double bytes);

// The position of `text` among the choices; their number if it is not one. Pure.
std::size_t choice_index(const setting& s, std::string_view text);
std::string choice_at(const setting& s, std::size_t index);

}  // namespace millrace
