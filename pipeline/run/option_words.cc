#include "pipeline/run/option_words.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "engine/base/option_list.h"
#include "pipeline/run/engine_options.h"

namespace millrace {
namespace {

bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

// Whether what begins there is a part of a path: messages name places as "at PATH".
bool is_in_path(std::string_view text, std::size_t begin) {
  const std::size_t before = text.find_last_of(" \n", begin);
  const std::size_t word = before == text.npos || begin == 0 ? 0 : before + 1;
  const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
  return text.substr(word, end - word).find('/') != text.npos ||
         text.substr(0, word).ends_with(" at ");
}

// Replaces `flag.first` wherever it stands as a whole.
std::string with_flag(std::string text, const option_flag& flag) {
  const auto& [old, now] = flag;
  for (std::size_t at = text.find(old); at != text.npos; at = text.find(old, at)) {
    const std::size_t end = at + old.size();
    const bool is_whole = (at == 0 || !is_of_name(text[at - 1])) &&
                          (end == text.size() || !is_of_name(text[end])) && !is_in_path(text, at);
    if (is_whole) text.replace(at, old.size(), now);
    at += is_whole ? now.size() : 1;
  }
  return text;
}

// A C++ name in a text.
struct found_name {
  std::size_t at = 0;
  std::size_t end = 0;
};

// The structs and enums whose fields and enumerators messages name.
constexpr auto structs = std::to_array<std::string_view>(
    {"augment_options",    "batch_options",         "cache_options",
     "chunked_sampler",    "color_jitter",          "crop_options",
     "decode_options",     "decoded_cache_options", "distributed_chunked_sampler",
     "engine_options",     "error_policy",          "gaussian_blur",
     "growing_size",       "http_options",          "image_limits",
     "image_options",      "index_options",         "io_backend",
     "join_options",       "map_options",           "mixing_options",
     "pack_options",       "random_erasing",        "repack_options",
     "shard_list_options", "shard_writer_options",  "shuffle_options",
     "source_options",     "tls_options",           "untar_options",
     "verify_options",     "window_options"});

// The next name of a field or an enumerator; nullopt: there is none.
std::optional<found_name> next_name(std::string_view text) {
  for (std::size_t at = text.find_first_of(".:"); at != text.npos;
       at = text.find_first_of(".:", at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && is_of_name(text[begin - 1])) --begin;
    if (std::ranges::find(structs, text.substr(begin, at - begin)) == structs.end()) continue;
    if (is_in_path(text, begin)) continue;
    std::size_t end = at + (text.substr(at).starts_with("::") ? 2 : 1);
    if (end == text.size() || !is_of_name(text[end])) continue;
    while (end < text.size() && (is_of_name(text[end]) || text[end] == '.')) ++end;
    if (text[end - 1] == '.') --end;  // of the sentence
    return found_name{.at = begin, .end = end};
  }
  return std::nullopt;
}

// The length of `prefix` if `text` begins with it and a variable; otherwise 0.
std::size_t before_variable(std::string_view text, std::string_view prefix) {
  const bool is_before =
      text.starts_with(prefix) && text.substr(prefix.size()).starts_with("MILLRACE_");
  return is_before ? prefix.size() : 0;
}

const std::map<std::string, std::string_view>& variables() {
  static const auto& all = *new auto([] {
    std::map<std::string, std::string_view> names;
    for (const auto& [field, variable] : engine_options::variables().fields()) {
      names.emplace(field, variable);
    }
    return names;
  }());
  return all;
}

// "crop_options.most_area": "most area"; "gaussian_blur.size": "gaussian blur size".
std::string plain_words(std::string_view name) {
  const std::string_view of = name.substr(0, name.find_first_of(".:"));
  std::string out(name.substr(name.find_last_of(".:") + 1));
  if (!of.ends_with("_options")) out = std::string(of) + " " + out;
  std::ranges::replace(out, '_', ' ');
  return out;
}

// The program's words for a name that `rest` follows. Removes from `rest` the part that they
// replace.
std::string words_for(std::string_view name, std::string_view& rest) {
  // "NAME, VARIABLE"
  if (const auto n = before_variable(rest, ", "); n > 0) {
    rest.remove_prefix(n);
    return "";
  }
  // "NAME (VARIABLE)", "NAME = VALUE (VARIABLE=VALUE)", "NAME to VALUE or more (VARIABLE=VALUE)"
  const std::size_t open = rest.find('(');
  const std::size_t close = rest.find(')', std::min(open, rest.size()));
  if (close != rest.npos && before_variable(rest.substr(open), "(") > 0) {
    constexpr std::string_view or_more = " or more ";
    const std::string_view between = rest.substr(0, open);
    const bool is_bound = between.starts_with(" to ") && between.ends_with(or_more);
    if (between == " " || between.starts_with(" = ") || is_bound) {
      std::string out(rest.substr(open + 1, close - open - 1));
      if (is_bound) out += or_more.substr(0, or_more.size() - 1);
      rest.remove_prefix(close + 1);
      return out;
    }
  }
  const auto known = variables().find(std::string(name));
  return known == variables().end() ? plain_words(name) : std::string(known->second);
}

}  // namespace

std::string in_program_words(std::string_view text, std::span<const option_flag> flags) {
  std::string flagged(text);
  for (const option_flag& flag : flags) flagged = with_flag(std::move(flagged), flag);
  std::string out;
  std::string_view rest = flagged;
  while (const auto name = next_name(rest)) {
    out += rest.substr(0, name->at);
    const std::string_view named = rest.substr(name->at, name->end - name->at);
    rest.remove_prefix(name->end);
    out += words_for(named, rest);
  }
  return out.append(rest);
}

error in_program_words(const error& why, std::span<const option_flag> flags) {
  error told = why;
  told.reworded(in_program_words(why.what(), flags));
  return told.hint(in_program_words(why.what_to_do(), flags));
}

}  // namespace millrace
