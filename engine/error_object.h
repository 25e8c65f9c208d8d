#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/error.h"

namespace millrace {

// What programs print with --json where they fail, a line without its end:
//   {"error": {"exit_code": 4, "kind": "not_found", "message": "not_found: ..."}}
std::string error_object(const error& why);

// The option of the library that a hint names, and the flag that sets it: "pack_options.overwrite"
// and "--overwrite".
using option_flag = std::pair<std::string_view, std::string_view>;

// `why` with flags in the place of options in its hint, for the people who gave the command line.
error with_flags(error why, std::span<const option_flag> flags);

// `why` with the hint to check the path extended to the brace range, if the command line has one.
error with_range_hint(error why, std::span<char* const> words);

// `why` without what must not be logged of the words of a command line, wherever it quotes one:
// whole, or a part as in --option=VALUE or -oVALUE. Programs pass each error through it before they
// tell it.
error without_secrets(const error& why, std::span<char* const> words);

}  // namespace millrace
