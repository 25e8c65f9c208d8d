#include "tools/jobs/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/words.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "io/names/shard_spec.h"
#include "io/names/url.h"
#include "io/names/url_scheme.h"
#include "io/unpack/unpack.h"

namespace millrace {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A name's last number, and what stands around it.
struct numbered {
  std::string before;
  std::string digits;
  std::string after;
};

numbered split_number(const std::string& name) {
  // Of the last component without its extensions, where it has one: the 2 of "a-2.tar", not of
  // ".z2".
  const auto slash = name.rfind('/');
  const auto dot = name.find('.', slash == name.npos ? 0 : slash);
  auto last = name.find_last_of("0123456789", dot == name.npos ? name.npos : dot);
  if (last == name.npos) last = name.find_last_of("0123456789");
  if (last == name.npos) return {name, "", ""};
  auto first = last;
  while (first > 0 && is_digit(name[first - 1])) --first;
  return {name.substr(0, first), name.substr(first, last + 1 - first), name.substr(last + 1)};
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '{' || c == '}' || c == ',' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// Numbers of one width as ranges and single ones. Width 0: without leading zeros.
std::vector<std::string> ranges_of(const std::set<std::uint64_t>& numbers, std::size_t width) {
  const auto text = [width](std::uint64_t n) { return fmt::format("{:0{}}", n, width); };
  std::vector<std::string> out;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const std::uint64_t first = *it;
    std::uint64_t last = first;
    for (++it; it != numbers.end() && *it == last + 1; ++it) last = *it;
    out.push_back(first == last ? text(first) : fmt::format("{{{}..{}}}", text(first), text(last)));
  }
  return out;
}

constexpr std::size_t most_digits = 18;

// Refuses a name that readers take for something other than an uncompressed archive.
void check_name(const std::string& name) {
  check_is_path(name, "shard");
  if (compression_named(name) == compression::none) return;
  throw failure(error(errc::usage,
                      "shards are written uncompressed, but this is the name of a compressed one")
                    .at(name)
                    .hint("write NAME.tar, and compress it afterwards"));
}

}  // namespace

std::vector<std::string> brace_summary(const std::vector<std::string>& names) {
  struct group {
    std::set<std::string> digits;
    std::size_t seen = 0;
  };
  std::map<std::pair<std::string, std::string>, group> groups;
  std::size_t seen = 0;
  std::map<std::string, std::size_t> plain;
  for (const std::string& name : names) {
    const numbered n = split_number(name);
    ++seen;
    if (n.digits.empty() || n.digits.size() > most_digits) {
      plain.emplace(name, seen);
      continue;
    }
    auto& g = groups[{n.before, n.after}];
    if (g.digits.empty()) g.seen = seen;
    g.digits.insert(n.digits);
  }
  std::map<std::size_t, std::string> in_order;
  for (const auto& [name, when] : plain) in_order[when] = escaped(name);
  for (const auto& [around, g] : groups) {
    // Numbers with leading zeros have a width of their own; the others go with those of their
    // length, or together where no length has zeros.
    std::set<std::size_t> padded;
    for (const std::string& d : g.digits) {
      if (d.size() > 1 && d.front() == '0') padded.insert(d.size());
    }
    std::map<std::size_t, std::set<std::uint64_t>> by_width;
    for (const std::string& d : g.digits) {
      by_width[padded.contains(d.size()) ? d.size() : 0].insert(std::stoull(d));
    }
    std::vector<std::string> parts;
    for (const auto& [width, numbers] : by_width) {
      std::ranges::move(ranges_of(numbers, width), std::back_inserter(parts));
    }
    std::string middle = parts.front();
    for (std::size_t i = 1; i < parts.size(); ++i) middle.append(",").append(parts[i]);
    in_order[g.seen] = fmt::format("{}{}{}{}{}", escaped(around.first), parts.size() > 1 ? "{" : "",
                                   middle, parts.size() > 1 ? "}" : "", escaped(around.second));
  }
  std::vector<std::string> out;
  out.reserve(in_order.size());
  for (auto& [when, pattern] : in_order) out.push_back(std::move(pattern));
  return out;
}

shard_names::shard_names(const std::string& pattern) {
  if (pattern.empty()) {
    throw failure(error(errc::usage, "the pattern of the shards' names is empty")
                      .hint("write one, such as train-%06d.tar (pack_options.pattern, "
                            "shard_writer_options.pattern)"));
  }
  const auto percent = pattern.find('%');
  if (percent == std::string::npos) {
    names_ = expand(pattern);
    std::set<std::string> seen;
    for (const std::string& name : names_) {
      check_name(name);
      if (name.find('{') != name.npos && pattern.find('\\') == pattern.npos) {
        throw failure(error(errc::usage, fmt::format("'{}' is not a pattern for names", pattern))
                          .hint("write one %06d, or a brace range such as {000000..000007}"));
      }
      if (seen.insert(std::filesystem::path(name).lexically_normal().string()).second) continue;
      throw failure(error(errc::usage, fmt::format("'{}' names a shard twice", pattern))
                        .at(name)
                        .hint("write each number once"));
    }
    return;
  }
  const auto letter = pattern.find('d', percent);
  const std::string digits =
      letter == std::string::npos ? "x" : pattern.substr(percent + 1, letter - percent - 1);
  const bool has_braces = pattern.find('{') != std::string::npos;
  // Without zeros it would be padded with blanks.
  const bool is_width = !has_braces && digits.size() <= 2 &&
                        (digits.empty() || digits.front() == '0') &&
                        std::ranges::all_of(digits, is_digit);
  if (!is_width || pattern.find('%', percent + 1) != std::string::npos) {
    throw failure(error(errc::usage, fmt::format("'{}' is not a pattern for names", pattern))
                      .hint("write one %06d, or a brace range such as {000000..000007}"));
  }
  before_ = pattern.substr(0, percent);
  after_ = pattern.substr(letter + 1);
  width_ = digits.empty() ? 0 : std::stoi(digits);
  check_name((*this)(0));
}

std::string shard_names::operator()(std::size_t i) const {
  if (names_.empty()) {
    return before_ + fmt::format("{:0{}}", i, width_) + after_;
  }
  check_count(i + 1);
  return names_[i];
}

void shard_names::check_count(std::size_t count) const {
  if (names_.empty() || count <= names_.size()) return;
  throw failure(error(errc::usage, fmt::format("the pattern names {}, and more are needed",
                                               counted(names_.size(), "shard")))
                    .hint("write %06d for any number"));
}

std::vector<std::string> shard_names::there_from(std::size_t first) const {
  std::vector<std::string> out;
  for (std::size_t i = first; i < names_.size(); ++i) {
    if (is_there(names_[i])) out.push_back(names_[i]);
  }
  if (!names_.empty()) return out;
  if (after_.find('/') != after_.npos) {  // numbered folders
    for (std::size_t i = first; is_there((*this)(i)); ++i) out.push_back((*this)(i));
    return out;
  }
  const auto slash = before_.rfind('/');
  const std::size_t base = slash == before_.npos ? 0 : slash + 1;
  std::vector<std::string> there;
  const int code = host_files().list(base > 0 ? before_.substr(0, base) : ".", there);
  if (code != 0 && code != -ENOENT) {
    throw failure(error(kind_of(-code), "cannot list the folder of the shards")
                      .at(before_.substr(0, base))
                      .cause(-code));
  }
  std::set<std::uint64_t> numbers;
  for (const std::string& name : there) {
    const std::string path = before_.substr(0, base) + name;
    if (!path.starts_with(before_) || !path.ends_with(after_)) continue;
    if (path.size() <= before_.size() + after_.size()) continue;
    const std::string digits =
        path.substr(before_.size(), path.size() - before_.size() - after_.size());
    const auto at = digits.find_first_not_of(' ');
    const bool is_number =
        at != digits.npos && digits.size() - at <= most_digits &&
        std::all_of(digits.begin() + static_cast<std::ptrdiff_t>(at), digits.end(), is_digit);
    if (!is_number) continue;
    const std::uint64_t number = std::stoull(digits.substr(at));
    if (number >= first && (*this)(number) == path) numbers.insert(number);
  }
  for (const std::uint64_t number : numbers) out.push_back((*this)(number));
  return out;
}

std::string with_suffix(double figure) {
  constexpr std::array suffixes{"", "k", "M", "G", "T", "E"};
  std::size_t i = 0;
  for (; figure >= 1000 && i + 1 < suffixes.size(); ++i) figure /= 1000;
  return fmt::format("{:.1f}{}", figure, suffixes.at(i));
}

std::string dataset_name(std::string_view first_file) {
  const auto slash = first_file.rfind('/');
  const auto dot = first_file.rfind('.');
  const bool has_extension =
      dot != first_file.npos && dot > (slash == first_file.npos ? 0 : slash + 1);
  const auto stem = first_file.substr(0, has_extension ? dot : first_file.npos);
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    const bool number = std::ranges::all_of(word, is_digit);
    if (!number && std::ranges::find(words, word) == words.end()) words.push_back(word);
    word.clear();
  };
  for (const char c : stem) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      word += c;
    } else {
      end_word();
    }
  }
  end_word();
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : "-") + w;
  return out;
}

std::string dataset_name(const std::string& spec, const std::vector<std::string>& urls) {
  if (!has_scheme(spec) && spec.find("://") == spec.npos) {
    const std::string name = dataset_name(spec);
    return !name.empty() ? name : dataset_name(urls.front());  // of "./"
  }
  const auto where = parse_url(urls.front());
  const bool has_path = where && where->scheme != "pipe";
  return has_path ? dataset_name(where->path.substr(0, where->path.find('?'))) : "";
}

}  // namespace millrace
