#include "pipeline/fake.h"

#include <fmt/format.h>

#include "cli/command.h"
#include "pipeline/tools/names.h"

namespace millrace::cli {
namespace {

constexpr int most_shards = 1'000'000;

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
    const shard_names names(a->pattern);
    const std::size_t count =
        names.limit() > 0 ? names.limit() : static_cast<std::size_t>(a->shards);
    std::vector<std::string> paths;
    paths.reserve(count);
    for (std::size_t i = 0; i < count; ++i) paths.push_back(names(i));
    write_fake_shards(paths, a->options);
    fmt::print("{} samples of {} classes in {} shards, {} to {}\n", a->options.samples,
               a->options.classes, paths.size(), paths.front(), paths.back());
    return 0;
  };
}

}  // namespace millrace::cli
