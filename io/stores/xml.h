#pragma once

#include <boost/property_tree/ptree.hpp>
#include <string>
#include <string_view>

#include "engine/base/nesting.h"
#include "engine/base/result.h"

namespace millrace {

// False if elements are nested deeper than `most`; also for some texts that are not XML, and for
// document types, which no store sends. Pure, without recursion.
bool is_shallow_xml(std::string_view text, int most = deepest_nesting);

// Parses the answer of a store or a token service. Boost's reader recurses for every element, so
// the depth is checked first. Skips text before the first '<' (a byte order mark). Fails with
// protocol ("the answer is not `what`"), or with too_large if it has more elements than the pages
// of stores: each takes far more memory than its text.
result<boost::property_tree::ptree> parse_store_xml(std::string_view text, std::string_view what);

}  // namespace millrace
