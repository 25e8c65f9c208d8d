#pragma once

#include <string_view>

#include "io/names/url.h"

namespace millrace {

// Whether a scheme stands in front, in any case of letters; else the text is a path, or "-".
bool has_scheme(std::string_view text);

// Whether a server on the network is asked for it, by HTTP or as an object store: no command, no
// file of this machine, and no socket of a program that runs on it.
bool is_on_network(const url& u);

}  // namespace millrace
