#pragma once

#include <string>
#include <string_view>

#include "train/checkpoints/arguments.h"

namespace millrace {

// The meaning of another value of an option: for a run that is resumed, and between the ranks of
// one.

// The notice for a run resumed with other arguments: "--lr 0.2 instead of 0.1, ..". Options missing
// from `before`, which an older version wrote, count as their `defaults`. Throws `failure` (usage)
// if a difference would lose or repeat samples, or the weights would not fit.
std::string told_differences(const arguments& now, arguments before, const arguments& defaults);

// Whether all ranks must be given the same value.
bool is_common(std::string_view option);

}  // namespace millrace
