#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace millrace {

// Whether a command line, without the program's name, has an option, such as "--lr".
bool is_given(const std::vector<std::string>& words, const std::string& option);

// The words of a command line after those that its --recipe stands for, if it has one, so that the
// last value of an option is the command line's. A recipe is a file with a JSON object of long
// names of options, without the dashes, and their values: text, numbers, true or false for flags,
// and lists. Lists of an option whose values add up are left out where the command line has that
// option. Throws `failure`: that of reading the file, and usage, naming the file, the line and the
// key, for a key that is not an option of `app`, with the nearest one, and for a value of the wrong
// type.
std::vector<std::string> with_recipe(const std::vector<std::string>& words, const CLI::App& app);

// Where the recipe of a command line gives the option that a refusal begins with, such as "--lr: 2
// is not 0 to 1": "FILE, line 3, column 5". Empty: there is none, or the option is on the command
// line.
std::string place_in_recipe(const std::vector<std::string>& words, const std::string& wrong);

}  // namespace millrace
