#include "train/checkpoints/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/error.h"
#include "engine/printable.h"

namespace millrace {
namespace {

using std::string_view;

// Without shards, which are compared as lists once they are known.
constexpr std::array no_difference{string_view("--allow-pipe"),
                                   string_view("--base"),
                                   string_view("--cache-decoded"),
                                   string_view("--cache-decoded-dir"),
                                   string_view("--checkpoint-dir"),
                                   string_view("--checkpoint-every"),
                                   string_view("--data-rank"),
                                   string_view("--data-world"),
                                   string_view("--device"),
                                   string_view("--index"),
                                   string_view("--init-weights"),
                                   string_view("--json"),
                                   string_view("--keep"),
                                   string_view("--log-every"),
                                   string_view("--max-steps"),
                                   string_view("--metrics"),
                                   string_view("--metrics-keys"),
                                   string_view("--nproc"),
                                   string_view("--restarts"),
                                   string_view("--on-error"),
                                   string_view("--overwrite"),
                                   string_view("--prefetch"),
                                   string_view("--raw"),
                                   string_view("--recipe"),
                                   string_view("--record-batches"),
                                   string_view("--resume"),
                                   string_view("--shards"),
                                   string_view("--skipped"),
                                   string_view("--timeout"),
                                   string_view("--val-batch-size"),
                                   string_view("--val-index"),
                                   string_view("--val-shards"),
                                   string_view("--zero-init-last-norm")};

constexpr std::array refuse_difference{string_view("--classes"), string_view("--mode"),
                                       string_view("--model"), string_view("--optimizer"),
                                       string_view("--seed")};

// Options that may differ between ranks.
constexpr std::array own_of_rank{string_view("--allow-pipe"),
                                 string_view("--base"),
                                 string_view("--cache-decoded"),
                                 string_view("--cache-decoded-dir"),
                                 string_view("--checkpoint-dir"),
                                 string_view("--data-rank"),
                                 string_view("--device"),
                                 string_view("--gpu-decode"),
                                 string_view("--index"),
                                 string_view("--init-weights"),
                                 string_view("--json"),
                                 string_view("--log-every"),
                                 string_view("--metrics"),
                                 string_view("--on-error"),
                                 string_view("--overwrite"),
                                 string_view("--prefetch"),
                                 string_view("--raw"),
                                 string_view("--recipe"),
                                 string_view("--record-batches"),
                                 string_view("--resume"),
                                 string_view("--shards"),
                                 string_view("--skipped"),
                                 string_view("--timeout"),
                                 string_view("--val-index"),
                                 string_view("--val-shards")};

bool has(std::span<const string_view> options, string_view option) {
  return std::ranges::find(options, option) != options.end();
}

template <class T>
std::optional<T> number_in(const std::string& text) {
  T value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_same_value(const std::string& a, const std::string& b) {
  // Checkpoints store text that is not UTF-8 in printable form.
  if (printable(a) == printable(b)) return true;
  // Large integers, which a double would round.
  const auto m = number_in<std::uint64_t>(a);
  const auto n = number_in<std::uint64_t>(b);
  if (m && n) return *m == *n;
  const auto x = number_in<double>(a);
  const auto y = number_in<double>(b);
  return x && y && *x == *y;
}

// Whether a run's plan has the part that `option` adds: a shuffle buffer, an index, epochs of a set
// length. A state with such a part's record cannot be resumed without it, nor the reverse.
bool has_part(string_view option, const arguments& said) {
  const auto is_set = [&](const char* name) {
    const auto found = said.find(name);
    return found != said.end() && !found->second.empty() && number_in<double>(found->second) != 0.0;
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

}  // namespace

difference meaning_of(std::string_view option) {
  if (has(no_difference, option)) return difference::none;
  if (has(refuse_difference, option)) return difference::refused;
  return difference::told;
}

bool is_common(std::string_view option) {
  return !has(own_of_rank, option);
}

std::vector<std::string> differences(const arguments& now, const arguments& before,
                                     difference least) {
  std::vector<std::string> out;
  for (const auto& [option, value] : now) {
    const auto other = before.find(option);
    if (other == before.end() || is_same_value(value, other->second)) continue;
    const bool is_other_plan = has_part(option, now) != has_part(option, before);
    const difference meaning = is_other_plan ? difference::refused : meaning_of(option);
    if (meaning < least) continue;
    out.push_back(fmt::format("{} {} instead of {}", option, shown(value, other->second),
                              shown(other->second, value)));
  }
  return out;
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
