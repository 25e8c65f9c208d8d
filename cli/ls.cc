#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "pipeline/tools/contact_sheet.h"

namespace millrace::cli {
namespace {

struct arguments {
  sample_walk walk;
  bool json = false;
  std::string sheet;  // a file for the contact sheet; empty: none
  int tiles = 64;
  decode_options decode{.size = 160, .train = false};
};

std::string line_of(const sample& s) {
  std::string fields;
  for (const field& f : s.fields) {
    fields += fmt::format("{}{}:{}", fields.empty() ? "" : " ", f.extension, f.data.size());
  }
  return fmt::format("{}\t{}\t{}", s.key, s.where.offset, fields);
}

int list(const environment& e, const arguments& a) {
  engine eng(a.walk.shards.engine(e));
  auto data = eng.run(a.walk.samples(e));
  auto samples = nlohmann::json::array();
  for (const sample& s : data) {
    if (a.json) {
      auto fields = nlohmann::json::object();
      for (const field& f : s.fields) fields[f.extension] = f.data.size();
      samples.push_back(
          {{"key", s.key}, {"shard", *s.url}, {"offset", s.where.offset}, {"fields", fields}});
    } else {
      fmt::print("{}\n", line_of(s));
    }
  }
  if (a.json) {
    const nlohmann::json all{{"samples", samples.size()}, {"list", std::move(samples)}};
    fmt::print("{}\n", all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return sample_walk::tell_of_damage(data.counts());
}

// The first samples only, listed in the order of the tiles.
int draw(const environment& e, const arguments& a) {
  constexpr int columns = 8;
  engine eng(a.walk.shards.engine(e));
  auto data = eng.run(a.walk.samples(e));
  contact_sheet sheet(columns, a.decode);
  int bad = 0;
  for (const sample& s : data) {
    if (const auto added = sheet.add(s); !added) {
      ++bad;
      fmt::print(stderr, "millrace: {}\n", added.error().message());
    }
    fmt::print("{}\n", line_of(s));
    if (sheet.tiles() == a.tiles) break;
  }
  if (sheet.tiles() == 0) throw failure(error(errc::no_samples, "the shards have no samples"));
  const auto png = sheet.png();
  std::ofstream out(a.sheet, std::ios::binary);
  out.write(reinterpret_cast<const char*>(png.data()), static_cast<std::streamsize>(png.size()));
  if (!out.flush()) throw failure(error(errc::io_failed, "cannot write the sheet").at(a.sheet));
  fmt::print(stderr, "millrace: {} tiles in {}{}\n", sheet.tiles(), a.sheet,
             bad > 0 ? fmt::format(", {} of them black: no image that can be decoded", bad) : "");
  return std::max(bad > 0 ? 1 : 0, sample_walk::tell_of_damage(data.counts()));
}

}  // namespace

action add_ls(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("ls", "per sample: key, byte offset, extensions with sizes");
  auto a = std::make_shared<arguments>();
  a->walk.add_to(*command);
  auto* json = command->add_flag("--json", a->json, "print one JSON object on the last line");
  auto* sheet =
      command
          ->add_option("--contact-sheet", a->sheet, "a PNG of the first samples' images, by rows")
          ->excludes(json);
  command->add_option("--tiles", a->tiles, "images of the sheet")
      ->check(CLI::Range(1, 4096))
      ->needs(sheet)
      ->capture_default_str();
  command->add_option("--tile-size", a->decode.size, "their side in pixels")
      ->check(CLI::Range(8, 1024))
      ->needs(sheet)
      ->capture_default_str();
  command
      ->add_flag("--augmented", a->decode.train,
                 "random crops and flips, as in the first epoch of training")
      ->needs(sheet);
  command->add_option("--seed", a->decode.seed, "of the crops and flips")->needs(sheet);
  return [a](const environment& e) { return a->sheet.empty() ? list(e, *a) : draw(e, *a); };
}

}  // namespace millrace::cli
