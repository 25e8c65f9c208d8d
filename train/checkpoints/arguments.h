#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// A command line: the value of every option by its name ("--batch-size" -> "32"), given or not.
using arguments = std::map<std::string, std::string>;

// The consequence of an option that differs between two command lines.
enum class difference {
  none,     // paths, output, speed
  told,     // training changes from here on: resuming prints a notice
  refused,  // samples would be lost or repeated, or the weights do not fit: no resuming
};
// The consequence of an option, by its name: "--lr".
difference meaning_of(std::string_view option);

// Options that differ and mean at least `least`: "--lr 0.2 instead of 0.1".
std::vector<std::string> differences(const arguments& now, const arguments& before,
                                     difference least);

// The notice for a run resumed with other arguments: "--lr 0.2 instead of 0.1, ..". Options missing
// from `before`, which an older version wrote, count as their `defaults`. Throws `failure` (usage)
// if a difference would lose or repeat samples, or the weights would not fit.
std::string told_differences(const arguments& now, arguments before, const arguments& defaults);

// Whether all ranks must be given the same value.
bool is_common(std::string_view option);

}  // namespace millrace
