#pragma once

#include <string>
#include <string_view>

namespace millrace {

// `text` made safe for a terminal: control characters (C0, DEL and C1), invisible characters and
// marks of direction (U+200B, U+202E, U+FEFF, ...) and bytes that are not UTF-8 become \xNN, so
// that a name from an archive or the network cannot move the cursor, forge a line, or look like
// another name. Other text is unchanged. Pure.
std::string printable(std::string_view text);

// Whether `text` is well-formed UTF-8 (The Unicode Standard, table 3-7). Pure.
bool is_utf8(std::string_view text);

}  // namespace millrace
