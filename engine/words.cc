#include "engine/words.h"

#include <fmt/format.h>

namespace millrace {

std::string counted(std::uint64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

std::string time_text(double seconds) {
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.0f} ms", 1e3 * seconds);
  return fmt::format("{:.0f} us", 1e6 * seconds);
}

}  // namespace millrace
