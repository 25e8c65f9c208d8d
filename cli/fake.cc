#include "pipeline/fake.h"

#include <fmt/format.h>

#include "cli/command.h"
#include "io/shard_spec.h"

namespace millrace::cli {
namespace {

constexpr int most_shards = 1'000'000;

// "train-%06d.tar" with a number of shards, or a brace range.
std::vector<std::string> shard_paths(const std::string& pattern, int shards) {
  const auto percent = pattern.find('%');
  if (percent == std::string::npos) return expand(pattern);
  const auto letter = pattern.find('d', percent);
  const std::string digits =
      letter == std::string::npos ? "x" : pattern.substr(percent + 1, letter - percent - 1);
  const bool is_width = digits.size() <= 2 && digits.find_first_not_of("0123456789") == digits.npos;
  if (!is_width || pattern.find('%', percent + 1) != std::string::npos) {
    throw failure(error(errc::usage, fmt::format("'{}' is no pattern for names", pattern))
                      .hint("write one %06d, or a brace range such as {000000..000007}"));
  }
  const int width = digits.empty() ? 0 : std::stoi(digits);
  std::vector<std::string> out;
  for (int i = 0; i < shards; ++i) {
    const std::string number =
        digits.starts_with('0') ? fmt::format("{:0{}}", i, width) : fmt::format("{:{}}", i, width);
    out.push_back(pattern.substr(0, percent) + number + pattern.substr(letter + 1));
  }
  return out;
}

}  // namespace

action add_fake(CLI::App& app) {
  CLI::App* command = app.add_subcommand("fake", "a learnable synthetic image dataset, as shards");
  struct arguments {
    std::string pattern;
    int shards = 8;
    fake_options options;
  };
  auto a = std::make_shared<arguments>();
  command->add_option("PATTERN", a->pattern, "names: train-%06d.tar, or train-{000000..000007}.tar")
      ->required();
  command->add_option("--shards", a->shards, "number of shards, for a pattern with %d")
      ->check(CLI::Range(1, most_shards))
      ->capture_default_str();
  command->add_option("--samples", a->options.samples, "samples in all")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  command->add_option("--classes", a->options.classes, "classes")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--size", a->options.size, "width and height in pixels")
      ->check(CLI::Range(8, 4096))
      ->capture_default_str();
  command->add_option("--seed", a->options.seed, "seed")->capture_default_str();
  return [a](const environment& /*e*/) {
    const auto paths = shard_paths(a->pattern, a->shards);
    write_fake_shards(paths, a->options);
    fmt::print("{} samples of {} classes in {} shards, {} to {}\n", a->options.samples,
               a->options.classes, paths.size(), paths.front(), paths.back());
    return 0;
  };
}

}  // namespace millrace::cli
