#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "pipeline/tools/pack.h"

namespace millrace::cli {
namespace {

struct arguments {
  pack_options options;
  shard_arguments shards;  // to be written again
  std::string most_bytes;
  std::string part;
  std::optional<std::uint64_t> shuffle;
  bool json = false;
};

// "2/4".
void read_part(const std::string& text, pack_options& o) {
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, o.part);
  const bool is_slash = first.ec == std::errc{} && first.ptr != end && *first.ptr == '/';
  const auto second = is_slash ? std::from_chars(first.ptr + 1, end, o.parts) : first;
  if (!is_slash || second.ec != std::errc{} || second.ptr != end || o.parts < 1 || o.part < 1 ||
      o.part > o.parts) {
    throw failure(error(errc::usage, fmt::format("'{}' is no part of a whole", text))
                      .hint("write 1/4 to 4/4"));
  }
}

pack_report written(const environment& e, arguments& a,
                    const std::function<void(const std::string&)>& say) {
  pack_options& o = a.options;
  if (a.shards.specs.empty() == o.from.empty()) {
    throw failure(error(errc::usage, "pack takes a folder or list, or --from-shards"));
  }
  if (!a.shards.specs.empty()) {
    if (o.restart == 0) {
      throw failure(error(errc::usage, "shards are written again for a reason: --restart K"));
    }
    engine eng(a.shards.engine(e));
    const repack_options again{.urls = a.shards.urls(e),
                               .pattern = o.pattern,
                               .restart = o.restart,
                               .overwrite = o.overwrite};
    return repack_shards(eng, again, say, interrupted());
  }
  if (!a.most_bytes.empty()) o.most_bytes = parse_bytes(a.most_bytes).value();
  if (!a.part.empty()) read_part(a.part, o);
  o.shuffle = a.shuffle;
  if (o.threads == 0)
    o.threads = std::max(allowed_cpus(), e.variables.integer("MILLRACE_CPU_THREADS"));
  return pack_shards(o, say, interrupted());
}

int pack(const environment& e, arguments a) {
  const auto say = [&](const std::string& line) {
    if (a.json) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  const pack_report r = written(e, a, say);
  if (a.json) {
    fmt::print(
        "{}\n",
        nlohmann::json{
            {"samples", r.samples},
            {"shards", r.shards},
            {"kept", r.kept},
            {"scaled", r.scaled},
            {"not_scaled", r.not_scaled},
            {"bytes_before", r.bytes_before},
            {"bytes_after", r.bytes_after},
            {"rewritten", r.rewritten},
            {"not_rewritten", r.not_rewritten},
            {"bytes", r.bytes},
            {"seconds", r.seconds},
            {"mb_per_s", r.seconds > 0 ? static_cast<double>(r.bytes) / 1e6 / r.seconds : 0},
            {"cpu_seconds", r.cpu_seconds},
            {"samples_per_s", r.seconds > 0 ? static_cast<double>(r.samples) / r.seconds : 0},
            {"interrupted", r.interrupted}}
            .dump());
  } else {
    fmt::print("{} samples{} in {} shards{}, {} in {:.1f} s\n", r.samples,
               r.classes > 0 ? fmt::format(" of {} classes", r.classes) : "", r.shards,
               r.kept > 0 ? fmt::format(" ({} of them were there)", r.kept) : "",
               format_bytes(static_cast<std::size_t>(r.bytes)), r.seconds);
    if (a.options.resize > 0) {
      fmt::print(
          "{} JPEGs are smaller, {} before and {} now, coded once more with quality {}; {} cannot "
          "be decoded, and are as they were\n",
          r.scaled, format_bytes(static_cast<std::size_t>(r.bytes_before)),
          format_bytes(static_cast<std::size_t>(r.bytes_after)), a.options.quality, r.not_scaled);
    }
    if (a.options.restart > 0) {
      fmt::print("{} JPEGs have restart markers; {} cannot have them, and are as they were\n",
                 r.rewritten, r.not_rewritten);
    }
  }
  return r.interrupted ? 130 : 0;
}

}  // namespace

action add_pack(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "pack", "a tree of class folders, a list of files, or other shards, into shards");
  auto a = std::make_shared<arguments>();
  pack_options& o = a->options;
  command->add_option("DIR", o.from,
                      "a folder of class folders, or @FILE with lines PATH[<tab>CLASS]");
  CLI::Option* again = command->add_option("--from-shards", a->shards.specs,
                                           "write these shards again, with --restart");
  command
      ->add_option("--restart", o.restart,
                   "restart markers every so many MCUs in JPEGs, losslessly: crops of them are "
                   "decoded faster; 4 is a good number")
      ->check(CLI::Range(1, 65535));
  command
      ->add_option("-o,--output", o.pattern, "names: train-%06d.tar, or train-{000000..000146}.tar")
      ->required();
  command->add_option("--max-bytes", a->most_bytes, "payload after which a shard is ended (3e9)");
  command->add_option("--max-count", o.most_count, "samples after which a shard is ended")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  command->add_option("--shuffle", a->shuffle, "mix the samples, by this seed");
  command
      ->add_option("--resize", o.resize,
                   "scale JPEGs so that their shorter side has so many pixels")
      ->check(CLI::Range(8, 16384));
  command->add_option("--quality", o.quality, "of JPEGs that are scaled")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--part", a->part, "I/N: only every N-th shard, from the I-th on");
  command->add_flag("--compat", o.compat,
                    "keys 00000000, 00000001, ... as ShardWriter's users have them");
  command->add_option("--threads", o.threads, "shards written at once (one for each CPU)")
      ->check(CLI::Range(1, 256));
  // Shards written again are as they were but for their images.
  for (const char* other : {"DIR", "--max-bytes", "--max-count", "--shuffle", "--resize",
                            "--quality", "--part", "--compat", "--threads"}) {
    again->excludes(command->get_option(other));
  }
  command->add_flag("--overwrite", o.overwrite, "write over shards that are there");
  command->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return pack(e, *a); };
}

}  // namespace millrace::cli
