#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// "1 shard", "2 shards"; with `plural` where an s is not enough: "2 indices". Pure.
std::string counted(std::uint64_t count, std::string_view noun, std::string_view plural = {});

// A duration as it is read: "800 us", "13 ms", "2.4 s". Pure; in seconds, 0 or more.
std::string time_text(double seconds);

}  // namespace millrace
