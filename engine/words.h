#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// "1 shard", "2 shards"; with `plural` where an s is not enough: "2 indices". Pure.
std::string counted(std::uint64_t count, std::string_view noun, std::string_view plural = {});

// With ASCII's capital letters made small. Pure.
std::string lowered(std::string_view text);

// Without the blanks, tabs and line ends at its begin and end. A part of `text`. Pure.
std::string_view trimmed(std::string_view text);

// The parts of `text` between separators; empty ones are left out. Pure.
std::vector<std::string> split(std::string_view text, char separator);

// A duration as it is read: "800 us", "13 ms", "2.4 s". Pure; in seconds, 0 or more.
std::string time_text(double seconds);

}  // namespace millrace
