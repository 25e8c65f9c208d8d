#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/base/result.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// Parses an integer as Python's int() does: surrounding blanks and a sign are allowed. nullopt: not
// an integer.
std::optional<std::int64_t> python_integer(std::string_view text);

// The class of a sample. `which` is one of
//   "auto"        the first of the fields cls, cls2, index, inx, id
//   EXTENSION     that field: an integer in ASCII, surrounding blanks allowed (as Python's int())
//   json:A.B      the number at A.B in the field json
//   "none"        no label: -1
// If `classes` is above 0, the label must be in [0, classes); 0 allows any integer.
// Fails with missing_field or bad_label (skippable), naming URL, byte and key.
result<std::int64_t> label_of(const sample& s, std::string_view which, std::int64_t classes = 0);

}  // namespace millrace
