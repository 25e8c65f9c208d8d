#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// "1 shard", "2 shards"; `plural` if it is irregular: "2 indices". Pure.
std::string counted(std::uint64_t count, std::string_view noun, std::string_view plural = {});

// An ASCII letter in lower case; any other character unchanged. Pure.
constexpr char lowered(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// `text` with ASCII letters in lower case. Pure.
std::string lowered(std::string_view text);

// `text` without leading and trailing blanks, tabs and line ends. Refers to `text`. Pure.
std::string_view trimmed(std::string_view text);

// The parts of `text` between separators, without empty ones. Pure.
std::vector<std::string> split(std::string_view text, char separator);

// A duration for people: "800 us", "13 ms", "2.4 s". In seconds, 0 or more. Pure.
std::string time_text(double seconds);

}  // namespace millrace
