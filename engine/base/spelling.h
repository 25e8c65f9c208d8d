#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

// The number of characters to insert, remove or replace, and of neighbours to swap, to turn one
// word into the other (optimal string alignment). Pure.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The name that the user most likely meant: the first of the nearest ones. Empty if there are none.
// Pure.
std::string nearest_of(std::string_view name, std::span<const std::string> known);

// The same; empty if less than half of it matches. `prefix`: the number of leading characters
// common to all ("--"), which do not count. Pure.
std::string near_of(std::string_view name, std::span<const std::string> known, std::size_t prefix);

}  // namespace millrace
