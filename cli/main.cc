#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <span>
#include <sstream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "engine/base/error_object.h"
#include "engine/host/log.h"
#include "engine/host/program.h"
#include "engine/host/standard_error.h"
#include "millrace/version.h"

namespace {

using namespace millrace;

// Prints one line on stderr, and with --json an object on `json`. `words`: the command line.
int report(const error& failed, std::span<char* const> words, std::FILE* json) {
  const int interrupted = failed.kind() == errc::stopped ? cli::exit_code_of_interrupt() : 0;
  const error why = cli::in_program_words(with_range_hint(without_secrets(failed, words), words));
  to_stderr("millrace: {}\n", why.message());
  if (json != nullptr) {
    const std::string line =
        (interrupted > 0 ? R"({"interrupted":true})" : error_object(why)) + "\n";
    // If stdout failed, the line on stderr has said so.
    std::fwrite(line.data(), 1, line.size(), json);
    std::fflush(json);
  }
  return interrupted > 0 ? interrupted : exit_code(why.kind());
}

// Where an error's object goes: nullptr without --json; stderr for `cat`, whose stdout is for
// bytes.
std::FILE* stream_of_json(int argc, char** argv) {
  const bool asked = std::any_of(argv + 1, argv + std::max(1, argc), [](const char* word) {
    return std::string_view(word) == "--json";
  });
  if (!asked) return nullptr;
  return std::string_view(argv[1]) == "cat" ? stderr : stdout;
}

struct program {
  CLI::App app{
      "Reads, makes, checks and measures WebDataset shards on disks, servers and object "
      "stores.",
      "millrace"};
  std::map<std::string, cli::action> actions;
  CLI::App* help = nullptr;
  std::vector<std::string> help_words;
  bool help_as_json = false;

  program() {
    app.formatter(cli::help_formatter());
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.require_subcommand(1);
    app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
    actions = cli::add_commands(app, cli::known_commands);
    cli::refuse_empty_values(app);
    help = app.add_subcommand("help", "prints the help of a command, or this help")
               ->group("This host");
    help->add_option("COMMAND", help_words, "a command, such as: bench disk");
    help->add_flag("--json", help_as_json,
                   "print the commands with their options, as one JSON object")
        ->group("Output");
    help->footer("Example:\n  millrace help bench disk");
    app.footer(
        "Example:\n  millrace ls train-000000.tar\n\n`millrace COMMAND --help` says more. To train "
        "models: millrace-train --help.");
  }
};

int run(int argc, char** argv, char** environment) {
  check_values_given(std::span(argv, static_cast<std::size_t>(argc)).subspan(argc > 0 ? 1 : 0));
  program p;
  try {
    p.app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::ostringstream text;  // of --help or --version
    const int code = p.app.exit(asked, text);
    fmt::print("{}", text.str());
    return code;
  } catch (const CLI::ParseError& wrong) {
    throw failure(error(errc::usage, cli::explanation(p.app, wrong)));
  }
  if (p.help->parsed()) {
    fmt::print("{}\n", p.help_as_json ? cli::help_json(p.app, p.help_words)
                                      : cli::help_text(p.app, p.help_words));
    return 0;
  }
  auto variables = read_settings(environment);
  if (!variables) throw failure(variables.error());
  const auto* level = variables->find("MILLRACE_LOG");
  if (level != nullptr) set_log_level(level->text);
  cli::set_up_screen(level == nullptr || level->text != "quiet");
  const cli::environment e{std::move(*variables)};
  return p.actions.at(p.app.get_subcommands().front()->get_name())(e);
}

}  // namespace

int main(int argc, char** argv, char** environment) {
  open_standard_streams();
  std::FILE* const json = stream_of_json(argc, argv);
  try {
    const int code = run(argc, argv, environment);
    flush_stdout();
    return code;
  } catch (...) {
    return exit_code_of_caught([&](const error& why) {
      std::fflush(stdout);
      return report(why, std::span(argv, static_cast<std::size_t>(argc)), json);
    });
  }
}
