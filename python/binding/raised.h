#pragma once

#include <functional>
#include <string>

namespace millrace::python {

// Makes every `failure` that a function of this module throws an exception of millrace.errors, in
// the words that `in_words` makes of a text, and writes what is logged to stderr in these, too.
// Null: as it is, for the authors of plans in C++, who know its names. Called once, when the module
// is imported.
void speak_in(std::function<std::string(const std::string&)> in_words = nullptr);

}  // namespace millrace::python
