#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/files/written_file.h"
#include "engine/host/host.h"
#include "engine/host/log.h"
#include "io/names/shard_name.h"
#include "tools/jobs/names.h"
#include "tools/write/pack.h"

namespace millrace::cli {
namespace {

struct pack_arguments {
  pack_options options;
  shard_arguments shards;  // to rewrite
  std::string most_bytes;
  std::string part;
  std::string same_name;
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
    throw failure(error(errc::usage, fmt::format("'{}' is not a part I/N", text))
                      .hint("write 1/4, 2/4, 3/4 and 4/4"));
  }
}

pack_report from_shards(const environment& e, const pack_arguments& a,
                        const std::function<void(const std::string&)>& say) {
  const pack_options& o = a.options;
  if (o.restart == 0) {
    throw failure(error(errc::usage,
                        "--from-shards needs --restart K: without it the output would "
                        "equal the input"));
  }
  const auto urls = a.shards.urls(e);
  const std::stop_token stop = stop_requested();  // before this, a signal ends it at once
  job_progress done;
  engine eng(a.shards.engine(e));
  const progress shown("pack", {.items = urls.size()}, [&] { return work_done{0, done.shards()}; });
  return repack_shards(eng, {.urls = urls,
                             .pattern = o.pattern,
                             .restart = o.restart,
                             .overwrite = o.overwrite,
                             .say = say,
                             .progress = &done,
                             .stop = stop});
}

pack_report from_files(const environment& e, pack_arguments& a,
                       const std::function<void(const std::string&)>& say) {
  pack_options& o = a.options;
  if (!a.same_name.empty()) {
    o.of_one_name = a.same_name == "fields" ? same_name::fields : same_name::samples;
  }
  if (!a.most_bytes.empty()) o.most_bytes = parse_bytes(a.most_bytes).value();
  if (!a.part.empty()) read_part(a.part, o);
  o.shuffle = a.shuffle;
  if (o.threads == 0) {
    o.threads = std::min(std::max(allowed_cpus(), engine_options::from(e.variables).cpu_threads),
                         pack_options::most_threads);
  }
  o.say = say;
  job_progress done;
  o.progress = &done;
  std::stop_source stopping;
  o.stop = stopping.get_token();
  const auto stop_it = [&] { stopping.request_stop(); };
  std::optional<std::stop_callback<decltype(stop_it)>> stops;
  std::optional<progress> shown;
  o.planned = [&](std::uint64_t /*shards*/, std::uint64_t payload) {
    stops.emplace(stop_requested(), stop_it);  // before this, a signal ends it at once
    shown.emplace("pack", amount_of_work{.bytes = payload},
                  [&] { return work_done{done.bytes(), 0}; });
  };
  return pack_shards(o);
}

nlohmann::json to_json(const pack_report& r) {
  const double per_second = r.seconds > 0 ? 1 / r.seconds : 0;
  return {{"samples", r.samples},
          {"classes", r.classes},
          {"classes_file", r.classes_file},
          {"shards", r.shards},
          {"written", r.written},
          {"kept", r.kept},
          {"left_out", r.left_out},
          {"scaled", r.scaled},
          {"not_scaled", r.not_scaled},
          {"undecodable", r.undecodable},
          {"bytes_before", r.bytes_before},
          {"bytes_after", r.bytes_after},
          {"rewritten", r.rewritten},
          {"not_rewritten", r.not_rewritten},
          {"other_images", r.other_images},
          {"bytes", r.bytes},
          {"seconds", r.seconds},
          {"mb_per_s", static_cast<double>(r.bytes) / 1e6 * per_second},
          {"cpu_seconds", r.cpu_seconds},
          {"samples_per_s", static_cast<double>(r.samples) * per_second},
          {"interrupted", r.interrupted}};
}

void print(const pack_report& r, const pack_options& o) {
  if (r.interrupted) {
    fmt::print("stopped: {} written{}; the same command {}\n", counted(r.written, "shard"),
               r.kept > 0 ? fmt::format(", {} were there already", r.kept) : "",
               o.overwrite ? "starts over" : "resumes");
    return;
  }
  // A repack does not read shards that were there already.
  const bool is_counted = r.samples > 0 || r.kept < r.shards;
  fmt::print("{}{}{}{}, {} in {}\n", is_counted ? counted(r.samples, "sample") : "",
             r.classes > 0 ? " of " + counted(r.classes, "class", "classes") : "",
             (is_counted ? " in " : "") + counted(r.shards - r.kept, "shard"),
             r.kept > 0 ? fmt::format(" ({} were there already)", r.kept) : "",
             format_bytes(static_cast<std::size_t>(r.bytes)), time_text(r.seconds));
  if (!r.classes_file.empty()) {
    fmt::print("{} has the names of the classes, in the order of their labels\n",
               printable(r.classes_file));
  }
  for (const std::string& what : r.left_out) fmt::print("left out: {}\n", what);
  if (o.resize > 0) {
    fmt::print(
        "scaled down: {}, {} before and {} now, re-encoded with quality {}; {} cannot be "
        "decoded\n",
        counted(r.scaled, "JPEG"), format_bytes(static_cast<std::size_t>(r.bytes_before)),
        format_bytes(static_cast<std::size_t>(r.bytes_after)), o.quality, r.not_scaled);
    for (const std::string& path : r.undecodable) {
      fmt::print("cannot be decoded, packed unchanged: {}\n", printable(path));
    }
    if (r.not_scaled > r.undecodable.size()) {
      fmt::print("and {} more\n", r.not_scaled - r.undecodable.size());
    }
  }
  if (r.other_images > 0 && (o.resize > 0 || o.restart > 0)) {
    fmt::print("packed unchanged: {} other than JPEG\n", counted(r.other_images, "image"));
  }
  if (o.restart > 0) {
    fmt::print("restart markers written: {}; {} cannot have them\n", counted(r.rewritten, "JPEG"),
               r.not_rewritten);
  }
}

int pack(const environment& e, pack_arguments a) {
  if (a.shards.specs.empty() == a.options.from.empty()) {
    throw failure(error(errc::usage, "pack takes a folder or list, or --from-shards"));
  }
  const auto say = [&](const std::string& line) {
    if (!a.json) print_line(line);
  };
  const pack_report r = a.shards.specs.empty() ? from_files(e, a, say) : from_shards(e, a, say);
  if (a.json) {
    print_json(to_json(r));
  } else {
    print(r, a.options);
  }
  const std::string first = shard_names(a.options.pattern)(0);
  if (stamp_of_file(first) && !is_shard_name(std::filesystem::path(first).filename().string())) {
    log_notice(fmt::format(
        "{} is not named like an archive, so readers of a folder or of '*' skip it; name "
        "the shards one by one, or choose a pattern that ends with .tar",
        printable(first)));
  }
  const bool is_sorted = a.options.from.size() > 0 && !a.shuffle && r.classes > 1;
  if (is_sorted && !r.interrupted) {
    log_notice("the samples are sorted by class; --shuffle SEED mixes them");
  }
  return r.interrupted ? exit_code_of_interrupt() : 0;
}

void add_image_options(CLI::App& command, pack_options& o) {
  command
      .add_option("--restart", o.restart,
                  "losslessly put a restart marker after every K MCUs of JPEGs, so that crops "
                  "decode faster; 4 is a good number")
      ->type_name("K")
      ->check(in_range(1, 65535))
      ->group("Images");
  auto* resize =
      command
          .add_option("--resize", o.resize,
                      "scale JPEGs so that their shorter side has this many pixels [unchanged]")
          ->type_name("PIXELS")
          ->check(in_range(8, 16384))
          ->group("Images");
  command.add_option("--quality", o.quality, "JPEG quality of scaled images, 1 to 100")
      ->check(in_range(1, 100))
      ->capture_default_str()
      ->needs(resize)
      ->group("Images");
}

void add_output_options(CLI::App& command, pack_arguments& a) {
  command
      .add_option("-o,--output", a.options.pattern,
                  "names of the shards: train-%06d.tar, or train-{000000..000146}.tar")
      ->type_name("PATTERN")
      ->required()
      ->group("Output");
  command
      .add_option("--max-bytes", a.most_bytes,
                  "payload after which a shard ends: 500M, 3G [3000000000]")
      ->type_name("BYTES")
      ->check([](const std::string& text) {
        const auto size = parse_bytes(text);
        return size && *size > 0 ? std::string() : "'" + text + "' is not a number of bytes";
      })
      ->group("Output");
  command.add_option("--max-count", a.options.most_count, "samples after which a shard ends")
      ->check(in_range(1, 1'000'000'000))
      ->capture_default_str()
      ->group("Output");
  command.add_option("--shuffle", a.shuffle, "mix the samples over all shards, with this seed")
      ->type_name("SEED")
      ->check(seed_number())
      ->group("Output");
  command
      .add_option("--part", a.part,
                  "write only every N-th shard, starting at the I-th; give --overwrite to all "
                  "parts or none")
      ->type_name("I/N")
      ->group("Output");
  command
      .add_flag("--compat", a.options.compat,
                "write keys 00000000, 00000001, ... and log lines like WebDataset's ShardWriter")
      ->group("Output");
  command.add_option("--threads", a.options.threads, "shards written at once [one per CPU]")
      ->default_str("")
      ->check(in_range(1, pack_options::most_threads))
      ->group("Output");
}

}  // namespace

action add_pack(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("pack", "packs class folders, a list of files, or other shards");
  auto a = std::make_shared<pack_arguments>();
  pack_options& o = a->options;
  command->add_option("DIR", o.from,
                      "a folder of class folders, or @FILE with lines PATH[<tab>CLASS]");
  command
      ->add_option(
          "--same-name", a->same_name,
          "whether a.png and a.seg.png next to a.jpg are 'fields' of its sample or 'samples' of "
          "their own [an error]")
      ->check(CLI::IsMember({"fields", "samples"}))
      ->group("Input");
  CLI::Option* again =
      command->add_option("--from-shards", a->shards.specs, "rewrite these shards, with --restart")
          ->type_name("SHARD...")
          ->group("Input");
  add_image_options(*command, o);
  add_output_options(*command, *a);
  // Rewritten shards differ only in their images.
  for (const char* other : {"DIR", "--max-bytes", "--max-count", "--shuffle", "--resize",
                            "--quality", "--part", "--compat", "--threads", "--same-name"}) {
    again->excludes(command->get_option(other));
  }
  command
      ->add_flag(
          "--overwrite", o.overwrite,
          "replace shards of these names; it cannot be resumed, and is refused if later shards "
          "of the pattern exist")
      ->group("Output");
  add_json(*command, a->json);
  command->footer(
      "Files that differ only in their extensions form one sample; next to a.jpg, a.box.json is\n"
      "its field box.json; other dots in names become '_'. If there are images, files that belong\n"
      "to none of them, such as notes.txt, are left out and counted. The field cls is the number\n"
      "of the class folder; train-classes.txt, next to the shards, has the names of the classes.\n"
      "Training and validation folders need the same class folders, including empty ones, to get\n"
      "the same numbers. Extensions are kept, in lower case: .JPEG becomes jpeg. Hidden files "
      "next\n"
      "to the shards (.train-000000.pack.json*) record what a job wrote, so that the same command\n"
      "resumes it; with --overwrite it starts over.\n"
      "\nExamples:\n"
      "  millrace pack imagenet/train -o out/train-%06d.tar --shuffle 1 --max-bytes 500M\n"
      "  millrace pack --from-shards out/train-{000000..000146}.tar -o fast/train-%06d.tar "
      "--restart 4");
  return [a](const environment& e) { return pack(e, *a); };
}

}  // namespace millrace::cli
