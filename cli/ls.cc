#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/outputs.h"
#include "engine/base/parsed_number.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/host.h"
#include "engine/host/standard_error.h"
#include "io/names/folder_listing.h"
#include "tools/inspect/contact_sheet.h"

namespace millrace::cli {
namespace {

struct ls_arguments {
  sample_walk walk;
  std::uint64_t most = 0;  // samples; 0: all
  bool json = false;
  std::string sheet;  // a file for the contact sheet; empty: none
  int tiles = 64;
  decode_options decode{.size = 160, .train = false};
};

std::string line_of(const sample& s) {
  std::string fields;
  for (const field& f : s.fields) {
    fields +=
        fmt::format("{}{}:{}", fields.empty() ? "" : " ", printable(f.extension), f.data.size());
  }
  return fmt::format("{}\t{}\t{}", printable(s.key), s.where.offset, fields);
}

int list(const environment& e, const ls_arguments& a) {
  const auto urls = a.walk.shards.urls(e);
  engine eng(a.walk.shards.engine(e));
  auto data = eng.run(a.walk.samples(urls));
  std::atomic<std::uint64_t> shard = 0;
  std::optional<progress> shown;
  // On a terminal the listed lines show progress.
  if (isatty(STDOUT_FILENO) == 0) {
    shown.emplace("ls", sample_walk::work_of(urls),
                  [&] { return work_done{data.stats().sources.bytes, shard}; });
  }
  std::optional<json_list> listed;
  if (a.json) listed.emplace("list");
  std::uint64_t count = 0;
  // A signal ends plain lines at once; a JSON object is completed first.
  const std::stop_token stop = a.json ? stop_requested() : std::stop_token();
  const bool whole = take_until_stopped(data, stop, [&](const sample& s) {
    if (a.json) {
      auto fields = nlohmann::json::object();
      for (const field& f : s.fields) fields[f.extension] = f.data.size();
      listed->add({{"key", s.key},
                   {"shard", redacted(*s.url)},
                   {"offset", s.where.offset},
                   {"fields", fields}});
    } else {
      fmt::print("{}\n", line_of(s));
    }
    shard = static_cast<std::uint64_t>(s.where.shard);
    return ++count != a.most;
  });
  shown.reset();
  if (listed) listed->end({{"samples", count}, {"interrupted", !whole}});
  if (!whole) return exit_code_of_interrupt();
  return sample_walk::report_damage(data.counts());
}

// The engine's options, less the memory of the tiles. Throws `failure` if that is more than half.
engine_options with_room_for_tiles(const environment& e, const ls_arguments& a) {
  engine_options how = a.walk.shards.engine(e);
  const std::size_t all = how.memory_bytes > 0 ? how.memory_bytes : default_memory_bytes();
  const auto asked = static_cast<std::uint64_t>(a.tiles);
  const std::uint64_t tiles = a.most > 0 ? std::min(a.most, asked) : asked;
  const std::size_t held = contact_sheet::bytes_of(static_cast<int>(tiles), a.decode.size);
  if (held > all / 2) {
    throw failure(
        error(errc::no_memory,
              fmt::format("{} of {} x {} pixels take {}, more than half of the memory ({})",
                          counted(tiles, "tile"), a.decode.size, a.decode.size, format_bytes(held),
                          format_bytes(all)))
            .hint(
                fmt::format("lower --tiles or --tile-size, or set MILLRACE_MEMORY to at least {}M",
                            (2 * held >> 20) + 1)));
  }
  how.memory_bytes = all - held;
  return how;
}

// Draws the first samples, one tile each, in the order of the list.
int draw(const environment& e, const ls_arguments& a) {
  constexpr int columns = 8;
  const auto urls = a.walk.shards.urls(e);
  struct stat there{};
  const bool is_device = stat(a.sheet.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  if (!is_device && !a.sheet.ends_with(".png") && !a.sheet.ends_with(".PNG")) {
    throw failure(
        error(errc::usage, fmt::format("--contact-sheet '{}' is not the name of a PNG", a.sheet))
            .hint("give it a name that ends with .png, before the shards"));
  }
  check_output(a.sheet, png_file, local_paths(urls));
  const engine_options how = with_room_for_tiles(e, a);
  // Created before anything is read, so that an unwritable folder is reported at once.
  static_cast<void>(interrupted());  // from now on a signal also removes the partial file
  written_file out(a.sheet, "contact sheet");
  engine eng(how);
  auto data = eng.run(a.walk.samples(urls));
  contact_sheet sheet(columns, a.decode);
  int bad = 0;
  std::uint64_t count = 0;
  const bool whole = take_until_stopped(data, stop_requested(), [&](const sample& s) {
    if (const auto added = sheet.add(s); !added) {
      ++bad;
      to_stderr("millrace: {}\n", in_program_words(added.error()).message());
    }
    return sheet.tiles() != a.tiles && ++count != a.most;
  });
  if (!whole) {
    to_stderr("millrace: stopped: no contact sheet was written\n");
    return exit_code_of_interrupt();
  }
  if (sheet.tiles() == 0) throw failure(error(errc::no_samples, "the shards have no samples"));
  sheet.write_png([&](std::span<const std::byte> made) { out.append(made); });
  out.commit();
  remove_partial_files(std::array{a.sheet});
  to_stderr(
      "millrace: {} in {}{}\n", counted(static_cast<std::uint64_t>(sheet.tiles()), "tile"),
      printable(a.sheet),
      bad > 0 ? fmt::format(", {} of them black: their samples have no decodable image", bad) : "");
  return std::max(bad > 0 ? 1 : 0, sample_walk::report_damage(data.counts()));
}

}  // namespace

action add_ls(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("ls", "lists samples: key, byte offset, extensions with sizes");
  auto a = std::make_shared<ls_arguments>();
  a->walk.add_to(*command);
  command->add_option("-n", a->most, "only the first N samples")
      ->type_name("SAMPLES")
      ->check([](const std::string& text) {
        const bool is_count = parsed_number<std::uint64_t>(text).value_or(0) > 0;
        return is_count ? std::string() : "'" + text + "' is not a number of samples";
      })
      ->group("Output");
  add_json(*command, a->json);
  CLI::Option* json = command->get_option("--json");
  const char* const group = "Contact sheet";
  auto* sheet =
      command
          ->add_option("--contact-sheet", a->sheet,
                       "draw the first samples' images, row by row, into this PNG instead of "
                       "listing them")
          ->type_name("FILE.png")
          ->group(group)
          ->excludes(json);
  command->add_option("--tiles", a->tiles, "images of the sheet")
      ->check(in_range(1, 4096))
      ->needs(sheet)
      ->group(group)
      ->capture_default_str();
  command->add_option("--tile-size", a->decode.size, "side of an image in pixels")
      ->type_name("PIXELS")
      ->check(in_range(8, 1024))
      ->needs(sheet)
      ->group(group)
      ->capture_default_str();
  command
      ->add_flag("--augmented", a->decode.train,
                 "use random crops and flips, as in the first epoch of training")
      ->needs(sheet)
      ->group(group);
  command->add_option("--seed", a->decode.seed, "seed of the crops and flips")
      ->check(seed_number())
      ->needs(sheet)
      ->group(group)
      ->capture_default_str();
  command->footer(
      "Examples:\n  millrace ls -n 10 train-000000.tar\n"
      "  millrace ls --contact-sheet first.png train-000000.tar");
  return [a](const environment& e) { return a->sheet.empty() ? list(e, *a) : draw(e, *a); };
}

}  // namespace millrace::cli
