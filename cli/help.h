#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

namespace millrace::cli {

// Prints options in two columns, wrapped to 100, with the unit or the choices and the default:
//   --size N          side of the images in pixels [224]
std::shared_ptr<CLI::Formatter> help_formatter();

// The command line as JSON: commands with their arguments, options and defaults, in the order of
// the help; all of them, or the one that `words` name and its subcommands. Tests take their tables
// from it. Throws `failure` (usage) for a command that does not exist.
std::string help_json(const CLI::App& program, const std::vector<std::string>& words);

// The text that `millrace help WORDS` prints; throws `failure` (usage) for a command that does not
// exist.
std::string help_text(const CLI::App& program, const std::vector<std::string>& words);

// The error message for a command line that could not be parsed, with what to type instead: it
// names the unknown command or option, and the nearest one that exists.
std::string explanation(const CLI::App& program, const CLI::ParseError& wrong);

}  // namespace millrace::cli
