#pragma once

#include <string>
#include <string_view>

namespace millrace {

// `text` as it may be shown on a terminal: control characters (C0, DEL and C1) and bytes that are
// not UTF-8 become \xNN, so that a name out of an archive or off the network cannot move the cursor
// or forge a line. Other text stays as it is. Pure.
std::string printable(std::string_view text);

}  // namespace millrace
