#include "engine/base/error_object.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json_tree.h"

namespace millrace {
namespace {

// `text` with the second of each pair in the place of the first, wherever it stands.
std::string replaced(std::string text, const auto& pairs) {
  for (const auto& [old, now] : pairs) {
    for (std::size_t at = text.find(old); at != text.npos; at = text.find(old, at)) {
      text.replace(at, old.size(), now);
      at += now.size();
    }
  }
  return text;
}

}  // namespace

std::string error_object(const error& why) {
  json_tree::object said;
  said.emplace("kind", std::string(kind_name(why.kind())));
  said.emplace("message", why.message());
  said.emplace("exit_code", std::int64_t{exit_code(why.kind())});
  json_tree::object whole;
  whole.emplace("error", std::move(said));
  return json_tree(std::move(whole)).dump();
}

error with_range_hint(error why, std::span<char* const> words) {
  const bool has_range = std::ranges::any_of(words, [](std::string_view word) {
    const auto brace = word.find('{');
    return brace != word.npos && word.find("..", brace) != word.npos;
  });
  if (has_range && why.what_to_do() == "check the path")
    why.hint("check the path and the brace range");
  return why;
}

error without_secrets(const error& why, std::span<char* const> words) {
  std::vector<std::pair<std::string, std::string>> secrets;
  const auto add = [&](std::string_view text) {
    std::string plain = redacted(text);
    if (plain != text) secrets.emplace_back(text, std::move(plain));
  };
  for (const std::string_view word : words) {
    add(word);
    if (const auto equals = word.find('='); equals != word.npos) {
      add(word.substr(0, equals));
      add(word.substr(equals + 1));
    }
    if (word.starts_with('-') && word.size() > 2) add(word.substr(2));
  }
  // One may be a part of another.
  std::ranges::sort(secrets, std::greater(), [](const auto& one) { return one.first.size(); });
  const std::string what = replaced(why.what(), secrets);
  const std::string hint = replaced(why.what_to_do(), secrets);
  if (what == why.what() && hint == why.what_to_do()) return why;
  error told(why.kind(), what);
  if (!why.where().empty()) told.at(why.where());
  if (why.byte_offset()) told.offset(*why.byte_offset());
  return told.key(why.sample_key()).hint(hint);
}

}  // namespace millrace
