#include "tools/write/fake.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/files/written_file.h"
#include "io/names/shard_name.h"
#include "pipeline/formats/tar_writer.h"
#include "tools/jobs/job_record.h"
#include "tools/jobs/names.h"

namespace millrace::cli {
namespace {

constexpr int most_shards = 1'000'000;
constexpr int usual_shards = 8;  // for a pattern with %d

struct fake_arguments {
  std::string pattern;
  std::optional<int> shards;
  fake_options options;
  bool json = false;
};

std::vector<std::string> paths_of(const fake_arguments& a) {
  const shard_names names(a.pattern);
  const auto wanted = static_cast<std::size_t>(a.shards.value_or(usual_shards));
  if (names.limit() > 0 && a.shards && names.limit() != wanted) {
    throw failure(error(errc::usage, fmt::format("'{}' names {}, but --shards is {}", a.pattern,
                                                 counted(names.limit(), "shard"), wanted))
                      .hint("write %06d into the name, or leave --shards out"));
  }
  const std::size_t count = names.limit() > 0 ? names.limit() : wanted;
  std::vector<std::string> paths;
  paths.reserve(count);
  for (std::size_t i = 0; i < count; ++i) paths.push_back(names(i));
  return paths;
}

// Another extension would be read as another kind of file, and not be listed as a shard.
void check_is_of_shard(const std::string& path) {
  struct stat there{};
  const bool is_device = stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  const std::string name = std::filesystem::path(path).filename();
  if (is_device || name.find('.') == name.npos || is_shard_name(name)) return;
  throw failure(error(errc::usage, "not the name of a shard")
                    .at(path)
                    .hint("give it a name that ends with .tar"));
}

// Without --overwrite, the same command would be refused because of the complete shards.
error with_way_on(error why, std::size_t complete, bool overwrites) {
  if (complete == 0 || overwrites) return why;
  const std::string& known = why.what_to_do();
  const std::string way_on = fmt::format(
      "{}{}{} complete: run it again with --overwrite", known, known.empty() ? "" : "; ",
      complete == 1 ? "1 shard is" : fmt::format("{} shards are", complete));
  return why.hint(way_on);
}

int fake(const fake_arguments& a) {
  const auto paths = paths_of(a);
  const shard_names names(a.pattern);
  check_no_living_run(names, 0, paths);  // first: --overwrite does not help against one
  for (const std::string& path : paths) {
    check_is_of_shard(path);
    check_shard_output(path, a.options.overwrite);
  }
  check_no_shard_after(names, paths.size());
  check_apart(paths, "shard");
  const std::atomic<bool>& stopped = interrupted();
  std::atomic<std::size_t> complete = 0;
  progress shown("fake", {.items = paths.size()}, [&] { return work_done{0, complete}; });
  const bool whole = [&] {
    try {
      return write_fake_shards(paths, a.options, [&](std::size_t shards) {
        complete = shards;
        return !stopped;
      });
    } catch (const failure& f) {
      throw failure(with_way_on(f.why(), complete, a.options.overwrite));
    }
  }();
  shown.end();
  if (!whole) {
    if (a.json) {
      print_json({{"interrupted", true}, {"complete", complete.load()}});
    } else {
      print_line(fmt::format(
          "stopped: {} of {} {} complete{}", complete.load(), counted(paths.size(), "shard"),
          complete == 1 ? "is" : "are",
          complete == 0 || a.options.overwrite ? "" : "; run it again with --overwrite"));
    }
    return exit_code_of_interrupt();
  }
  if (a.json) {
    print_json({{"samples", a.options.samples},
                {"classes", a.options.classes},
                {"shards", paths.size()},
                {"first", paths.front()},
                {"last", paths.back()}});
  } else {
    const auto number = [](int n) { return static_cast<std::uint64_t>(n); };
    fmt::print("{} of {} in {}, {}{}\n", counted(number(a.options.samples), "sample"),
               counted(number(a.options.classes), "class", "classes"),
               counted(paths.size(), "shard"), printable(paths.front()),
               paths.size() > 1 ? " to " + printable(paths.back()) : "");
  }
  return 0;
}

}  // namespace

action add_fake(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("fake", "writes a learnable synthetic image dataset, as shards");
  auto a = std::make_shared<fake_arguments>();
  a->options.overwrite = false;
  command
      ->add_option("PATTERN", a->pattern,
                   "names of the shards: train-%06d.tar, or train-{000000..000007}.tar")
      ->required();
  const char* const group = "Dataset";
  command
      ->add_option("--shards", a->shards,
                   fmt::format("number of shards, for a pattern with %d [{}]", usual_shards))
      ->check(in_range(1, most_shards))
      ->group(group);
  command->add_option("--samples", a->options.samples, "samples in all shards together")
      ->check(in_range(1, 1'000'000'000))
      ->group(group)
      ->capture_default_str();
  command->add_option("--classes", a->options.classes, "number of classes, 1 to 100")
      ->check(in_range(1, 100))
      ->group(group)
      ->capture_default_str();
  command->add_option("--size", a->options.size, "width and height of the images in pixels")
      ->type_name("PIXELS")
      ->check(in_range(8, 4096))
      ->group(group)
      ->capture_default_str();
  command
      ->add_option("--seed", a->options.seed,
                   "seed of the images: the same options give the same bytes")
      ->check(seed_number())
      ->group(group)
      ->capture_default_str();
  command
      ->add_flag("--overwrite", a->options.overwrite,
                 "replace shards of these names; refused if later shards of the pattern exist")
      ->group("Output");
  add_json(*command, a->json);
  command->footer("Example:\n  millrace fake data/train-%06d.tar --shards 4 --samples 10000");
  return [a](const environment& /*e*/) {
    static_cast<void>(interrupted());  // from now on a signal also removes the partial file
    return fake(*a);
  };
}

}  // namespace millrace::cli
