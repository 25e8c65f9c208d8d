#include "tools/write/pack_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "engine/files/folders.h"
#include "pipeline/samples/label.h"

namespace millrace {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Names would be numbered in alphabetical order: '10.0' before '2.0'. A number that readers cannot
// hold is not a label.
bool is_odd_number(const std::string& text) {
  if (is_number(text)) return !python_integer(text);
  const bool is_marked =
      text.starts_with('-') || text.starts_with('+') || text.find('.') != text.npos;
  if (!is_marked || text.find_first_of("0123456789") == text.npos) return false;
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return *end == '\0';
}

// "007" is the class 7.
std::string without_zeros(const std::string& label) {
  return label.substr(std::min(label.find_first_not_of('0'), label.size() - 1));
}

std::string name_of(const std::string& path) {
  const std::string normal = std::filesystem::path(path).lexically_normal().string();
  const auto first = normal.find_first_not_of("/.");
  return first == normal.npos ? normal : normal.substr(first);
}

}  // namespace

std::vector<listed_file> read_pack_list(const std::string& file) {
  constexpr std::size_t most_bytes = std::size_t{16} << 30;  // a line for each sample
  const auto text = read_whole_file(file, most_bytes);
  if (!text) throw failure(error(text.error()).hint("@FILE names a list of files, one a line"));
  std::istringstream in(*text);
  std::vector<listed_file> out;
  std::unordered_map<std::string, std::size_t> line_of;  // by the whole path
  std::size_t number = 0;
  const auto refused = [&](std::string what, std::string_view hint) {
    return failure(
        error(errc::usage, fmt::format("line {} has {}", number, what)).at(file).hint(hint));
  };
  for (std::string line; std::getline(in, line);) {
    if (++number == 1) drop_byte_order_mark(line);
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const auto tab = line.find('\t');
    const std::string label(tab == line.npos ? ""
                                             : trimmed(std::string_view(line).substr(tab + 1)));
    if (label.find('\t') != label.npos) {
      throw refused("more than a file and its class", "write FILE, or FILE<tab>CLASS");
    }
    if (is_odd_number(label)) {
      throw refused(fmt::format("the class '{}'", label), "write numbers as 0, 1, 2, or names");
    }
    const std::string path = line.substr(0, tab);
    const auto whole = std::filesystem::absolute(path).lexically_normal().string();
    const auto [other, is_first] = line_of.emplace(whole, number);
    if (!is_first) {
      throw failure(error(errc::usage, fmt::format("the list names this file more than once, in "
                                                   "lines {} and {}",
                                                   other->second, number))
                        .at(path)
                        .hint("remove one of the lines"));
    }
    const bool is_label = is_number(label);
    out.push_back({path, name_of(path), is_label ? without_zeros(label) : label, is_label});
  }
  return out;
}

}  // namespace millrace
