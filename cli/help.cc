#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/option_list.h"
#include "engine/base/spelling.h"
#include "engine/coroutines/async.h"
#include "pipeline/run/engine_options.h"

namespace millrace::cli {
namespace {

constexpr std::size_t first_column = 28;
constexpr std::size_t all_columns = 100;

// "name, then its meaning" in two columns, the second one wrapped.
std::string row(const std::string& name, const std::string& meaning) {
  std::string out = "  " + name;
  std::size_t column = out.size();
  if (column + 2 > first_column) {
    out += '\n';
    column = 0;
  }
  std::istringstream words(meaning);
  out.append(first_column - column, ' ');
  column = first_column;
  bool is_first = true;
  for (std::string word; words >> word;) {
    if (!is_first && column + 1 + word.size() > all_columns) {
      out += '\n' + std::string(first_column, ' ');
      column = first_column;
      is_first = true;
    }
    if (!is_first) out += ' ';
    out += word;
    column += word.size() + (is_first ? 0 : 1);
    is_first = false;
  }
  return out + '\n';
}

// The unit of an option's value, or its choices.
std::string taken_by(const CLI::Option& option) {
  if (option.get_type_size() == 0) return {};
  const std::string whole = option.get_type_name();
  const std::string type = whole.substr(0, whole.find(':'));
  if (const auto open = whole.find('{'); open != std::string::npos) {
    std::string choices = whole.substr(open + 1, whole.find('}') - open - 1);
    std::ranges::replace(choices, ',', '|');
    return choices;
  }
  if (type == "INT" || type == "UINT") return "N";
  return type == "FLOAT" ? "X" : type;
}

std::string default_of(const CLI::Option& option) {
  return option.get_type_size() == 0 || option.get_required() ? "" : option.get_default_str();
}

// Commands that read shards use the variables of an engine.
bool reads_shards(const CLI::App& command) {
  return command.get_option_no_throw("SHARD") != nullptr;
}

std::string variables_by_group() {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const setting& s : engine_options::variables().all()) {
    auto group = std::ranges::find(groups, s.group, [](const auto& g) { return g.first; });
    if (group == groups.end()) group = groups.insert(group, {std::string(s.group), ""});
    if (!group->second.empty()) group->second += ' ';
    group->second += s.name;
  }
  std::string out = "\nVariables (`millrace env` lists their meanings and ranges):\n";
  for (const auto& [heading, names] : groups) out += row(heading, names);
  return out + "\n";
}

class formatter final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string taken = is_positional ? "" : taken_by(*option);
    std::string names = is_positional ? option->get_name(true, false) : switches(*option);
    if (!taken.empty()) names += " " + taken;
    std::string meaning = option->get_description();
    if (const std::string initial = default_of(*option); !initial.empty()) {
      meaning += fmt::format(" [{}]", initial);
    }
    if (option->get_required() && !is_positional) meaning += " (required)";
    return row(names, meaning);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return row(command->get_name(), command->get_description());
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string out = "\n" + CLI::Formatter::make_usage(app, std::move(name));
    const auto at = out.find("SUBCOMMAND");
    return at == std::string::npos ? out : out.replace(at, 10, "COMMAND");
  }
  std::string make_footer(const CLI::App* app) const override {
    const std::string variables = reads_shards(*app) ? variables_by_group() : "";
    return variables + (app->get_footer().empty() ? "" : app->get_footer() + "\n");
  }

 private:
  // Without the values that CLI11 adds to flags: "--no-augment{false}".
  static std::string switches(const CLI::Option& option) {
    std::string names = option.get_name(false, true);
    for (auto open = names.find('{'); open != std::string::npos; open = names.find('{')) {
      names.erase(open, names.find('}', open) - open + 1);
    }
    for (auto at = names.find(','); at != std::string::npos; at = names.find(',', at + 2)) {
      names.insert(at + 1, " ");
    }
    return names;
  }
};

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr || parent->get_parent() == nullptr
             ? command.get_name()
             : full_name(*parent) + " " + command.get_name();
}

void add_commands(const CLI::App& app, nlohmann::ordered_json& list) {
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  const bool runs_alone = app.get_require_subcommand_min() == 0;
  if (app.get_parent() != nullptr && (below.empty() || runs_alone)) {
    nlohmann::ordered_json one{{"command", full_name(app)}, {"meaning", app.get_description()}};
    one["arguments"] = nlohmann::ordered_json::array();
    one["options"] = nlohmann::ordered_json::array();
    for (const CLI::Option* option : app.get_options()) {
      const bool is_positional = option->get_positional();
      nlohmann::ordered_json o{{"name", option->get_name(is_positional)}};
      if (!is_positional) o["takes"] = taken_by(*option);
      o["required"] = option->get_required();
      if (is_positional) o["many"] = option->get_expected_max() > 1;
      o["default"] = default_of(*option);
      o["meaning"] = option->get_description();
      if (!is_positional) o["group"] = option->get_group();
      one[is_positional ? "arguments" : "options"].push_back(std::move(o));
    }
    one["variables"] = nlohmann::ordered_json::array();
    if (reads_shards(app)) {
      for (const setting& s : engine_options::variables().all()) one["variables"].push_back(s.name);
    }
    list.push_back(std::move(one));
  }
  for (const CLI::App* command : below) add_commands(*command, list);
}

const CLI::App& deepest(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : deepest(*chosen.front());
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    out.push_back(command->get_name());
  }
  return out;
}

std::vector<std::string> names_of_options(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
  }
  return out;
}

// The hint for a word that is not one of `names`.
std::string advice(const std::string& word, const std::vector<std::string>& names,
                   const std::string& help) {
  const std::string near = near_of(word, names, word.starts_with("--") ? 2 : 0);
  return near.empty() ? fmt::format("see `{}`", help)
                      : fmt::format("did you mean {}? See `{}`", near, help);
}

// The command that `words` name, and its full name; throws `failure` (usage) if there is none.
std::pair<const CLI::App*, std::string> named(const CLI::App& program,
                                              const std::vector<std::string>& words) {
  const CLI::App* at = &program;
  std::string name = "millrace";
  for (const std::string& word : words) {
    const auto found =
        at->get_subcommands([&](const CLI::App* c) { return c->get_name() == word; });
    if (found.empty()) {
      throw failure(error(errc::usage, fmt::format("'{}' is not a command of {}", word, name))
                        .hint(advice(word, names_of_commands(*at), "millrace help")));
    }
    at = found.front();
    name += " " + word;
  }
  return {at, name};
}

// The present name of a renamed option, or empty.
std::string new_name(const std::string& command, const std::string& option) {
  return command == "sim" && option == "--size" ? "--world-size" : "";
}

}  // namespace

std::shared_ptr<CLI::Formatter> help_formatter() {
  auto made = std::make_shared<formatter>();
  made->label("Positionals", "Arguments");
  return made;
}

std::string help_json(const CLI::App& program, const std::vector<std::string>& words) {
  auto list = nlohmann::ordered_json::array();
  add_commands(*named(program, words).first, list);
  return nlohmann::ordered_json{{"commands", std::move(list)}}.dump();
}

std::string help_text(const CLI::App& program, const std::vector<std::string>& words) {
  const auto [at, name] = named(program, words);
  return help_formatter()->make_help(at, name, CLI::AppFormatMode::Normal);
}

std::string explanation(const CLI::App& program, const CLI::ParseError& wrong) {
  const CLI::App& at = deepest(program);
  const bool is_program = at.get_parent() == nullptr;
  const std::string name = is_program ? "millrace" : "millrace " + full_name(at);
  const std::string help = name + " --help";
  const std::string see = fmt::format("; see `{}`", help);
  const auto left = at.remaining();
  const auto commands = names_of_commands(at);
  if (!commands.empty() && !left.empty() && !left.front().starts_with('-')) {
    return fmt::format("'{}' is not a command of {}; {}", left.front(), name,
                       advice(left.front(), commands, help));
  }
  const auto option = std::ranges::find_if(
      left, [](const std::string& word) { return word.size() > 1 && word.starts_with('-'); });
  if (option != left.end()) {
    const std::string word = option->substr(0, option->find('='));
    const std::string now = is_program ? "" : new_name(full_name(at), word);
    return now.empty()
               ? fmt::format("{} has no option {}; {}", name, word,
                             advice(word, names_of_options(at), help))
               : fmt::format("{} has no option {}: it is now called {}{}", name, word, now, see);
  }
  if (!left.empty()) {
    return fmt::format("{} does not take the argument '{}'{}", name, left.front(), see);
  }
  if (at.get_require_subcommand_min() > 0 && at.get_subcommands().empty()) {
    return fmt::format("{} needs a command{}", name, see);
  }
  std::string what = wrong.what();
  std::ranges::replace(what, '\n', ' ');
  return what + see;
}

}  // namespace millrace::cli
