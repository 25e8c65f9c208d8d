#pragma once

#include <string_view>

namespace millrace {

// Whether the text begins with a scheme, in any case; if not, it is a path, or "-".
bool has_scheme(std::string_view text);

}  // namespace millrace
