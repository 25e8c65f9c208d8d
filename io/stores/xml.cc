#include "io/stores/xml.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/property_tree/xml_parser.hpp>
#include <sstream>

#include "engine/coroutines/scope.h"

namespace millrace {
namespace {

// Above the pages of stores: 5,000 entries of 25 elements. In a tree each element takes up to 300
// bytes, whatever its text.
constexpr std::ptrdiff_t most_marks = 300'000;

// The position after the first `end` in `text`; the text's size if there is none.
std::size_t position_after(std::string_view text, std::string_view end) {
  const auto at = text.find(end);
  return at == std::string_view::npos ? text.size() : at + end.size();
}

// The length of an opening tag; 0 if it is not one. A '>' within an attribute's quotes does not end
// it. Quotes anywhere else are rejected, because parsers differ on their meaning.
std::size_t tag_length(std::string_view text) {
  const auto name_end = std::min(text.find_first_of(" \t\r\n/>"), text.size());
  if (text.substr(0, name_end).find_first_of("\"'") != std::string_view::npos) return 0;
  char quote = 0;
  char before = 0;
  for (std::size_t i = name_end; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      if (before != '=') return 0;
      quote = c;
    } else if (c == '>') {
      return i + 1;
    }
    if (std::string_view(" \t\r\n").find(c) == std::string_view::npos) before = c;
  }
  return 0;
}

}  // namespace

bool is_shallow_xml(std::string_view text, int most) {
  int depth = 0;
  while (!text.empty()) {
    text.remove_prefix(std::min(text.find('<'), text.size()));
    std::size_t length = 0;
    if (text.starts_with("<!--")) {
      length = 4 + position_after(text.substr(4), "-->");
    } else if (text.starts_with("<![CDATA[")) {
      length = position_after(text, "]]>");
    } else if (text.starts_with("<?")) {
      length = 2 + position_after(text.substr(2), "?>");
    } else if (text.starts_with("<!")) {
      return false;  // a document type: no store sends one
    } else if (text.starts_with("</")) {
      if (--depth < 0) return false;
      length = position_after(text, ">");
    } else if (!text.empty()) {
      length = tag_length(text);
      if (length == 0) return false;
      const bool is_empty = text.substr(0, length).ends_with("/>");
      if (!is_empty && ++depth > most) return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

result<boost::property_tree::ptree> parse_store_xml(std::string_view text, std::string_view what) {
  error refused(errc::protocol, fmt::format("the answer is not {}", what));
  text.remove_prefix(std::min(text.find('<'), text.size()));
  if (!is_shallow_xml(text)) return refused;
  // Counts elements, their ends, attributes and comments.
  const auto marks = std::ranges::count(text, '<') + 2 * std::ranges::count(text, '=');
  if (marks > most_marks) {
    return error(errc::too_large, fmt::format("the answer is {} with too many elements", what));
  }
  try {
    boost::property_tree::ptree tree;
    std::istringstream in{std::string(text)};
    boost::property_tree::read_xml(in, tree);
    return tree;
  } catch (const boost::property_tree::ptree_error&) {
    return refused;
  }
}

}  // namespace millrace
