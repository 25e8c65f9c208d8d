#pragma once

#include <string>
#include <string_view>

namespace millrace {

// `text` as it may be shown on a terminal: control characters (C0, DEL and C1), characters that are
// not seen or turn the direction of others (U+200B, U+202E, U+FEFF, ...) and bytes that are not
// UTF-8 become \xNN, so that a name out of an archive or off the network cannot move the cursor,
// forge a line, or look like another. Other text stays as it is. Pure.
std::string printable(std::string_view text);

}  // namespace millrace
