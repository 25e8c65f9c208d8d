#include "train/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/error.h"
#include "engine/folders.h"
#include "engine/spelling.h"

namespace millrace {
namespace {

constexpr const char* own_name = "--recipe";

error wrong_recipe(const std::string& file, const std::string& what) {
  return error(errc::usage, "--recipe: " + what).at(file);
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

nlohmann::json object_in(const std::string& file) {
  std::set<std::string> keys;
  using event = nlohmann::json::parse_event_t;
  const auto look = [&](int depth, event what, nlohmann::json& parsed) {
    if (depth == 1 && what == event::key && !keys.insert(parsed.get<std::string>()).second) {
      throw failure(
          wrong_recipe(file, fmt::format("it has '{}' twice", parsed.get<std::string>())));
    }
    return true;
  };
  auto parsed = nlohmann::json::parse(read_whole_file(file).value(), look, false);
  if (parsed.is_object()) return parsed;
  throw failure(wrong_recipe(file, "it is not a JSON object")
                    .hint(R"(write {"lr": 0.5, "schedule": "cosine"}, for example)"));
}

const CLI::Option* option_named(const CLI::App& app, const std::string& key) {
  for (const CLI::Option* option : app.get_options()) {
    if (std::ranges::find(option->get_lnames(), key) != option->get_lnames().end()) return option;
  }
  return nullptr;
}

error unknown_key(const std::string& file, const std::string& key, const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back(name);
  }
  return wrong_recipe(file, fmt::format("there is no option '{}'", key))
      .hint(fmt::format("did you mean '{}'? See `millrace-train --help`", nearest_of(key, known)));
}

// The text of a value that is no list; empty: it has another type.
std::string text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() || value.is_boolean() ? value.dump() : "";
}

// Each with its option, in one word.
std::vector<std::string> words_of(const std::string& file, const std::string& key,
                                  const nlohmann::json& value, const CLI::Option& option) {
  const bool is_flag = option.get_items_expected_max() == 0;
  if (is_flag != value.is_boolean()) {
    throw failure(wrong_recipe(
        file, fmt::format("the value of '{}' is {}", key,
                          is_flag ? "not true or false" : "true or false, and it is no flag")));
  }
  const bool adds_up = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  std::vector<std::string> texts;
  const std::vector<nlohmann::json> values =
      value.is_array() ? value.get<std::vector<nlohmann::json>>() : std::vector{value};
  if (values.empty()) throw failure(wrong_recipe(file, fmt::format("'{}' is an empty list", key)));
  for (const nlohmann::json& each : values) {
    const std::string text = text_of(each);
    if (text.empty() && !each.is_string()) {
      throw failure(wrong_recipe(file, fmt::format("the value of '{}' is not text, a number, true "
                                                   "or false, or a list of them",
                                                   key)));
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

std::vector<std::string> with_recipe(const std::vector<std::string>& words, const CLI::App& app) {
  const std::string file = recipe_of(words);
  if (file.empty()) return words;
  std::vector<std::string> all;
  const nlohmann::json recipe = object_in(file);
  for (const auto& [key, value] : recipe.items()) {
    const CLI::Option* option = option_named(app, key);
    const bool is_own = "--" + key == own_name || key == "help" || key == "version";
    if (option == nullptr || is_own) throw failure(unknown_key(file, key, app));
    const bool adds_up = option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    if (adds_up && is_given(words, "--" + key)) continue;
    for (std::string& word : words_of(file, key, value, *option)) all.push_back(std::move(word));
  }
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

}  // namespace millrace
