#include "train/command_line/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/nesting.h"
#include "engine/base/printable.h"
#include "engine/base/spelling.h"
#include "engine/files/folders.h"

namespace millrace {
namespace {

constexpr const char* own_name = "--recipe";

error wrong_recipe(const std::string& file, const std::string& what) {
  return error(errc::usage, "--recipe: " + what).at(file);
}

// Of the last occurrence of a key: "line 3, column 5"; empty: it is written with escapes, or not
// there.
std::string place_of(const std::string& key, const std::string& text) {
  std::size_t at = text.npos;
  const std::string quoted =
      nlohmann::json(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  for (std::size_t i = text.find(quoted); i != text.npos; i = text.find(quoted, i + 1)) {
    const std::size_t next = text.find_first_not_of(" \t\r\n", i + quoted.size());
    if (next != text.npos && text[next] == ':') at = i;
  }
  if (at == text.npos) return "";
  const std::string_view before = std::string_view(text).substr(0, at);
  const std::size_t line = before.rfind('\n') + 1;  // 0 in the first one
  return fmt::format("line {}, column {}", 1 + std::ranges::count(before, '\n'), at - line + 1);
}

// The error of a key, with its place.
error wrong_key(const recipe_text& of, const std::string& key, const std::string& what) {
  const std::string where = place_of(key, of.text);
  return wrong_recipe(of.file, where.empty() ? what : where + ": " + what);
}

// "line 3, column 5: what is wrong", of what the parser says; else `said`.
std::string without_exception_name(const std::string& said) {
  const std::size_t line = said.find("line ");
  const std::size_t end = said.find(": ", std::min(line, said.size()));
  if (line != said.npos && end != said.npos) return said.substr(line);
  const std::size_t name = said.starts_with('[') ? said.find("] ") : said.npos;
  return name == said.npos ? said : said.substr(name + 2);
}

// The value of the last --recipe; empty: there is none.
std::string recipe_of(const std::vector<std::string>& words) {
  const std::string with_value = std::string(own_name) + "=";
  std::string file;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with(with_value)) file = words[i].substr(with_value.size());
    if (words[i] == own_name && i + 1 < words.size()) file = words[i + 1];
  }
  return file;
}

nlohmann::json object_in(const recipe_text& of) {
  std::set<std::string> keys;
  using event = nlohmann::json::parse_event_t;
  const auto look = [&](int depth, event what, nlohmann::json& parsed) {
    if (depth == 1 && what == event::key && !keys.insert(parsed.get<std::string>()).second) {
      const auto key = parsed.get<std::string>();
      throw failure(wrong_key(of, key, fmt::format("it has '{}' twice", key)));
    }
    return true;
  };
  std::string why;
  if (const auto deep = why_not_parsed(of.text)) {
    throw failure(wrong_recipe(of.file, "it is not parsed: " + *deep));
  }
  try {
    auto parsed = nlohmann::json::parse(of.text, look);
    if (parsed.is_object()) return parsed;
  } catch (const nlohmann::json::exception& e) {
    why = ": " + printable(without_exception_name(e.what()));
  }
  throw failure(wrong_recipe(of.file, "it is not a JSON object" + why)
                    .hint(R"(write {"lr": 0.5, "schedule": "cosine"}, for example)"));
}

const CLI::Option* option_named(const CLI::App& app, const std::string& key) {
  for (const CLI::Option* option : app.get_options()) {
    if (std::ranges::find(option->get_lnames(), key) != option->get_lnames().end()) return option;
  }
  return nullptr;
}

error unknown_key(const recipe_text& of, const std::string& key, const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  }
  return wrong_key(of, key, fmt::format("there is no option '{}'", key))
      .hint(fmt::format("did you mean '{}'? See `millrace-train --help`", nearest_of(key, known)));
}

// The text of a value that is not a list; empty: it has another type.
std::string text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  // 1e1 is a whole number too.
  constexpr double most_exact = 0x1p53;
  if (const double x = value.is_number_float() ? value.get<double>() : 0.5;
      x == std::trunc(x) && std::abs(x) < most_exact) {
    return std::to_string(static_cast<std::int64_t>(x));
  }
  return value.is_number() || value.is_boolean() ? value.dump() : "";
}

// Each with its option, in one word.
std::vector<std::string> words_of(const recipe_text& of, const std::string& key,
                                  const nlohmann::json& value, const CLI::Option& option) {
  const bool is_flag = option.get_items_expected_max() == 0;
  if (is_flag != value.is_boolean()) {
    throw failure(wrong_key(
        of, key,
        fmt::format("the value of '{}' is {}", key,
                    is_flag ? "not true or false" : "true or false, and it is not a flag")));
  }
  const bool adds_up = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  std::vector<std::string> texts;
  const std::span<const nlohmann::json> values =
      value.is_array() ? std::span(value.get_ref<const nlohmann::json::array_t&>())
                       : std::span(&value, 1);
  if (values.empty()) throw failure(wrong_key(of, key, fmt::format("'{}' is an empty list", key)));
  for (const nlohmann::json& each : values) {
    const std::string text = text_of(each);
    if (text.empty() && !each.is_string()) {
      throw failure(wrong_key(of, key,
                              fmt::format("the value of '{}' is not text, a number, true "
                                          "or false, or a list of them",
                                          key)));
    }
    if (text.empty()) {
      throw failure(wrong_key(of, key, fmt::format("'{}' has an empty value", key))
                        .hint("write one, or leave the key out"));
    }
    if (adds_up || texts.empty()) {
      texts.push_back(text);
    } else {
      texts.back() += "," + text;
    }
  }
  for (std::string& text : texts) text.insert(0, "--" + key + "=");
  return texts;
}

}  // namespace

bool is_given(const std::vector<std::string>& words, const std::string& option) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    return word == option || word.starts_with(option + "=");
  });
}

recipe_text read_recipe(const std::vector<std::string>& words) {
  const std::string file = recipe_of(words);
  constexpr std::size_t most_bytes = 1 << 20;
  if (file.empty()) return {};
  auto text = read_whole_file(file, most_bytes);
  if (!text && text.error().kind() == errc::too_large) {
    throw failure(wrong_recipe(file, "it has more than 1 MiB"));
  }
  return {.file = file, .text = std::move(text).value()};
}

std::vector<std::string> with_recipe(const recipe_text& of, const std::vector<std::string>& words,
                                     const CLI::App& app) {
  if (of.file.empty()) return words;
  std::vector<std::string> all;
  const nlohmann::json recipe = object_in(of);
  for (const auto& [key, value] : recipe.items()) {
    const CLI::Option* option = option_named(app, key);
    if ("--" + key == own_name) {
      throw failure(wrong_key(of, key, "a recipe cannot name another one")
                        .hint("write the options of both into one file"));
    }
    const bool is_own = key == "help" || key == "version";
    if (option == nullptr || is_own) throw failure(unknown_key(of, key, app));
    const bool adds_up = option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    if (adds_up && is_given(words, "--" + key)) continue;
    for (std::string& word : words_of(of, key, value, *option)) all.push_back(std::move(word));
  }
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

std::string place_in_recipe(const recipe_text& recipe, const std::vector<std::string>& words,
                            const std::string& wrong) {
  const std::size_t end = wrong.find(':');
  if (recipe.file.empty() || !wrong.starts_with("--") || end == wrong.npos) return "";
  if (is_given(words, wrong.substr(0, end))) return "";
  const std::string place = place_of(wrong.substr(2, end - 2), recipe.text);
  return place.empty() ? "" : fmt::format("{}, {}", recipe.file, place);
}

}  // namespace millrace
