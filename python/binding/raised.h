#pragma once

#include <functional>
#include <string>

namespace millrace::python {

// Makes every `failure` that a function of this module throws an exception of millrace.errors.
// `in_words` gives an error's text in the words of who reads it; null: as it is. Called once, when
// the module is imported.
void raise_failures(std::function<std::string(const std::string&)> in_words = nullptr);

}  // namespace millrace::python
