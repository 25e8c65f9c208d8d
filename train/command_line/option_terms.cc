#include "train/command_line/option_terms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/parsed_number.h"
#include "engine/base/printable.h"

namespace millrace {
namespace {

using std::string_view;

// The consequence of an option that differs between two command lines.
enum class difference {
  none,     // paths, output, speed
  told,     // training changes from here on: resuming prints a notice
  refused,  // samples would be lost or repeated, or the weights do not fit: no resuming
};

enum class rank_values { agree, differ };

// The meaning of another value of an option: for a run that is resumed, and between ranks of one
// run.
struct option_terms {
  string_view option;
  difference on_resume;
  rank_values between;
};

// Options that are not here: told on resuming, and the ranks agree. Shards are compared as lists
// once they are known.
constexpr std::array known_options = {
    option_terms{"--allow-pipe", difference::none, rank_values::differ},
    option_terms{"--base", difference::none, rank_values::differ},
    option_terms{"--cache-decoded", difference::none, rank_values::differ},
    option_terms{"--cache-decoded-dir", difference::none, rank_values::differ},
    option_terms{"--checkpoint-dir", difference::none, rank_values::differ},
    option_terms{"--checkpoint-every", difference::none, rank_values::agree},
    option_terms{"--classes", difference::refused, rank_values::agree},
    option_terms{"--data-rank", difference::none, rank_values::differ},
    option_terms{"--data-world", difference::none, rank_values::agree},
    option_terms{"--device", difference::none, rank_values::differ},
    option_terms{"--gpu-decode", difference::told, rank_values::differ},
    option_terms{"--index", difference::none, rank_values::differ},
    option_terms{"--init-weights", difference::none, rank_values::differ},
    option_terms{"--json", difference::none, rank_values::differ},
    option_terms{"--keep", difference::none, rank_values::agree},
    option_terms{"--log-every", difference::none, rank_values::differ},
    option_terms{"--max-steps", difference::none, rank_values::agree},
    option_terms{"--metrics", difference::none, rank_values::differ},
    option_terms{"--metrics-keys", difference::none, rank_values::agree},
    option_terms{"--mode", difference::refused, rank_values::agree},
    option_terms{"--model", difference::refused, rank_values::agree},
    option_terms{"--nproc", difference::none, rank_values::agree},
    option_terms{"--on-error", difference::none, rank_values::differ},
    option_terms{"--optimizer", difference::refused, rank_values::agree},
    option_terms{"--overwrite", difference::none, rank_values::differ},
    option_terms{"--prefetch", difference::none, rank_values::differ},
    option_terms{"--profile", difference::none, rank_values::differ},
    option_terms{"--raw", difference::none, rank_values::differ},
    option_terms{"--recipe", difference::none, rank_values::differ},
    option_terms{"--record-batches", difference::none, rank_values::differ},
    option_terms{"--restarts", difference::none, rank_values::agree},
    option_terms{"--resume", difference::none, rank_values::differ},
    option_terms{"--seed", difference::refused, rank_values::agree},
    option_terms{"--shards", difference::none, rank_values::differ},
    option_terms{"--skipped", difference::none, rank_values::differ},
    option_terms{"--timeout", difference::none, rank_values::differ},
    option_terms{"--val-batch-size", difference::none, rank_values::agree},
    option_terms{"--val-index", difference::none, rank_values::differ},
    option_terms{"--val-shards", difference::none, rank_values::differ},
    option_terms{"--zero-init-last-norm", difference::none, rank_values::agree},
};

option_terms terms_of(string_view option) {
  const auto* const found = std::ranges::find(known_options, option, &option_terms::option);
  return found != known_options.end() ? *found
                                      : option_terms{option, difference::told, rank_values::agree};
}

bool is_same_value(const std::string& a, const std::string& b) {
  // Checkpoints store text that is not UTF-8 in printable form.
  if (printable(a) == printable(b)) return true;
  // Large integers, which a double would round.
  const auto m = parsed_number<std::uint64_t>(a);
  const auto n = parsed_number<std::uint64_t>(b);
  if (m && n) return *m == *n;
  const auto x = parsed_number<double>(a);
  const auto y = parsed_number<double>(b);
  return x && y && *x == *y;
}

// Whether a run's plan has the part that `option` adds: a shuffle buffer, an index, epochs of a set
// length. A state with such a part's record cannot be resumed without it, nor the reverse.
bool has_part(string_view option, const arguments& said) {
  const auto is_set = [&](const char* name) {
    const auto found = said.find(name);
    return found != said.end() && !found->second.empty() &&
           parsed_number<double>(found->second) != 0.0;
  };
  if (option == "--shuffle") return is_set("--shuffle");
  if (option == "--index") return is_set("--index");
  const bool is_length = option == "--epoch-samples" || option == "--epoch-batches";
  return is_length && (is_set("--epoch-samples") || is_set("--epoch-batches"));
}

// A value as shown next to the `other` that differs from it. A flag at its default is empty.
std::string_view shown(std::string_view value, std::string_view other) {
  if (!value.empty()) return value;
  return other == "true" ? "false" : other == "false" ? "true" : "none";
}

// Options that differ and mean at least `least`: "--lr 0.2 instead of 0.1".
std::vector<std::string> differences(const arguments& now, const arguments& before,
                                     difference least) {
  std::vector<std::string> out;
  for (const auto& [option, value] : now) {
    const auto other = before.find(option);
    if (other == before.end() || is_same_value(value, other->second)) continue;
    const bool is_other_plan = has_part(option, now) != has_part(option, before);
    const difference meaning = is_other_plan ? difference::refused : terms_of(option).on_resume;
    if (meaning < least) continue;
    out.push_back(fmt::format("{} {} instead of {}", option, shown(value, other->second),
                              shown(other->second, value)));
  }
  return out;
}

}  // namespace

bool is_common(std::string_view option) {
  return terms_of(option).between == rank_values::agree;
}

std::string told_differences(const arguments& now, arguments before, const arguments& defaults) {
  before.insert(defaults.begin(), defaults.end());
  const auto refused = differences(now, before, difference::refused);
  if (!refused.empty()) {
    throw failure(
        error(errc::usage, fmt::format("the checkpoint was saved with other arguments: {}",
                                       fmt::join(refused, ", ")))
            .hint("use those of the run that saved it, or train from scratch"));
  }
  return fmt::format("{}", fmt::join(differences(now, before, difference::told), ", "));
}

}  // namespace millrace
