#include "engine/base/check_option.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace millrace {

std::string option_text(int value) {
  return std::to_string(value);
}
std::string option_text(std::int64_t value) {
  return std::to_string(value);
}
std::string option_text(std::uint64_t value) {
  return std::to_string(value);
}
std::string option_text(double value) {
  return fmt::format("{:g}", value);
}
std::string option_text(std::chrono::milliseconds value) {
  return fmt::format("{} ms", value.count());
}

void refuse_option(std::string_view name, const std::string& value, const std::string& allowed) {
  throw failure(error(errc::usage, value + " is out of range")
                    .hint(fmt::format("{} takes {}", name, allowed)));
}

}  // namespace millrace
