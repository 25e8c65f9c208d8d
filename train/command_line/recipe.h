#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace millrace {

// Whether a command line, without the program's name, has an option, such as "--lr".
bool is_given(const std::vector<std::string>& words, const std::string& option);

// The file that --recipe names, which is read once: it may be a pipe.
struct recipe_text {
  std::string file;  // empty: there is no --recipe
  std::string text;
};
// The recipe of a command line. Throws `failure` if the file cannot be read.
recipe_text read_recipe(const std::vector<std::string>& words);

// Returns the recipe's options followed by `words`, so that the command line wins; without a
// recipe, `words`. A recipe is a file with a JSON object: long names of
// options without their dashes, and values (text, numbers, true or false for flags, lists). If the
// values of an option add up and the command line has it, the recipe's list is left out. Throws
// `failure`: usage, with the file, the line, the key and the nearest option, for a key that is not
// an option of `app`; usage for a value of the wrong type.
std::vector<std::string> with_recipe(const recipe_text& recipe,
                                     const std::vector<std::string>& words, const CLI::App& app);

// Where the recipe of a command line gives the option that a refusal begins with, such as "--lr: 2
// is not 0 to 1": "FILE, line 3, column 5". Empty: there is none, or the option is on the command
// line.
std::string place_in_recipe(const recipe_text& recipe, const std::vector<std::string>& words,
                            const std::string& wrong);

}  // namespace millrace
