#pragma once

#include <span>
#include <string>

#include "engine/base/error.h"

namespace millrace {

// The object that programs print with --json when they fail, a line without its end:
//   {"error": {"exit_code": 4, "kind": "not_found", "message": "not_found: ..."}}
std::string error_object(const error& why);

// `why` with the hint to check the path extended to the brace range, if the command line has one.
error with_range_hint(error why, std::span<char* const> words);

// `why` without what must not be logged of the words of a command line, wherever it quotes one:
// whole, or a part as in --option=VALUE or -oVALUE. Programs pass each error through it before they
// tell it.
error without_secrets(const error& why, std::span<char* const> words);

}  // namespace millrace
