#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/error.h"

namespace millrace {

// An option as the library's messages name it, or a text with such names, and what a program says
// in its place: "pack_options.overwrite" and "--overwrite".
using option_flag = std::pair<std::string_view, std::string_view>;

// `text`, a message of the library, without names of C++ fields: an option becomes the program's
// flag, its MILLRACE_ variable, or else its plain words. Earlier flags come first. Any thread.
std::string in_program_words(std::string_view text, std::span<const option_flag> flags);
// `why` in these words.
error in_program_words(const error& why, std::span<const option_flag> flags);

}  // namespace millrace
