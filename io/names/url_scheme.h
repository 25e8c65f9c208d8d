#pragma once

#include <string_view>

#include "io/names/url.h"

namespace millrace {

// Whether the text begins with a scheme, in any case; if not, it is a path, or "-".
bool has_scheme(std::string_view text);

// Whether a server on the network answers for the URL, by HTTP or as an object store: not a
// command, a file of this host, or the socket of a program on it.
bool is_on_network(const url& u);

}  // namespace millrace
