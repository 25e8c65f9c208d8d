#include "cli/outputs.h"

#include <algorithm>
#include <sstream>

namespace millrace::cli {
namespace {

bool is_png(std::string_view head) {
  return head.starts_with("\x89PNG\r\n\x1a\n");
}

// The beginning of state::to_json().
bool is_state(std::string_view head) {
  constexpr std::string_view first = R"({"checksum":")";
  constexpr std::size_t digits = 16;
  constexpr std::string_view next = R"(","held":{)";
  return head.starts_with(first) && head.size() > first.size() + digits &&
         head.substr(first.size() + digits).starts_with(next);
}

bool is_crops(std::string_view head) {
  std::istringstream line(std::string(head.substr(0, head.find('\n'))));
  int numbers = 0;
  for (std::string word; line >> word; ++numbers) {
    if (!std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; })) return false;
  }
  return numbers == 5;
}

}  // namespace

const file_kind png_file{"a PNG", is_png};
const file_kind state_file{"a saved state", is_state};
const file_kind crops_file{"a list of crops", is_crops};

}  // namespace millrace::cli
