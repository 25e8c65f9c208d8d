#pragma once

#include <array>
#include <string_view>

#include "io/names/url.h"

namespace millrace {

// Whether the text begins with a scheme, in any case; if not, it is a path, or "-".
bool has_scheme(std::string_view text);

// The schemes of object stores, in the order in which io/stores/store.cc makes them.
inline constexpr std::array<std::string_view, 5> store_schemes = {"s3", "gs", "az", "ais", "hf"};
bool is_of_store(std::string_view scheme);

// Whether a server on the network answers for the URL, by HTTP or as an object store: not a
// command, a file of this host, or the socket of a program on it.
bool is_on_network(const url& u);

}  // namespace millrace
