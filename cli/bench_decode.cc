#include <fmt/format.h>

#include <atomic>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/outputs.h"
#include "engine/base/words.h"
#include "io/names/folder_listing.h"
#include "tools/bench/decode_bench.h"

namespace millrace::cli {
namespace {

struct bench_decode_arguments {
  shard_arguments shards;
  decode_bench_options what;
  bool validation = false;
  std::string crops;
  std::string stage = "all";
  std::string mode = "exact";
  std::string huffman = "own";
  bool json = false;
};

nlohmann::json to_json(const decode_bench_report& r, bool decodes) {
  return {{"bytes", r.bytes},
          {"seconds", r.seconds},
          {"mb_per_s", static_cast<double>(r.bytes) / 1e6 / r.seconds},
          {"cpu_seconds", r.cpu_seconds},
          {"samples", r.images},
          {"samples_per_s", r.images_per_s()},
          {"images_per_s", r.images_per_s()},
          {"images_per_s_per_core", static_cast<double>(r.images) / r.cpu_seconds},
          {"failed", r.failed},
          {"others", r.others},
          {"threads", r.threads},
          {"limit_images_per_s", r.limit_images_per_s()},
          {"of_limit", decodes ? nlohmann::json(r.of_limit) : nlohmann::json()},
          {"whole_images_per_s", r.whole_images_per_s()},
          {"header_us", r.header_us},
          {"pixels_us", r.pixels_us},
          {"resize_us", r.resize_us},
          {"other_us", r.other_us},
          {"interrupted", r.interrupted}};
}

// One line per crop, for comparisons: x y width height mirrored.
void write_crops(const decode_bench_report& r, const std::string& path) {
  std::string lines;
  for (const view_of_image& v : r.views) {
    lines += fmt::format("{} {} {} {} {}\n", v.crop.x, v.crop.y, v.crop.width, v.crop.height,
                         v.flip ? 1 : 0);
  }
  write_whole_file(path, lines, "list of crops");
}

void print(const decode_bench_report& r, bool decodes) {
  fmt::print("images    {}, {:.1f} KB each{}\n", r.images,
             static_cast<double>(r.bytes) / 1e3 / static_cast<double>(r.images),
             r.failed > 0 ? fmt::format("; {} more cannot be decoded", r.failed) : "");
  if (r.others > 0) {
    fmt::print("left out  {} with images other than JPEG\n", counted(r.others, "sample"));
  }
  fmt::print("rate      {:.0f} images/s on {}, {:.0f} per second of CPU time\n", r.images_per_s(),
             counted(static_cast<std::uint64_t>(r.threads), "thread"),
             static_cast<double>(r.images) / r.cpu_seconds);
  fmt::print(
      "libjpeg   {:.0f} images/s: libjpeg-turbo decoding the same regions and nothing else{}\n",
      r.limit_images_per_s(),
      decodes ? fmt::format("; this decoder is {:.2f} times as fast", r.of_limit) : "");
  fmt::print(
      "whole     {:.0f} images/s: whole images with the fast transform and area averaging, as in "
      "FFCV\n",
      r.whole_images_per_s());
  fmt::print(
      "per image {:.0f} us; measured separately: {:.0f} us header, {:.0f} us pixels, {:.0f} us "
      "resampling\n",
      r.header_us + r.pixels_us + r.resize_us + r.other_us, r.header_us, r.pixels_us, r.resize_us);
}

int bench_decode(const environment& e, bench_decode_arguments a) {
  a.what.urls = a.shards.urls(e);
  a.what.decode.train = !a.validation;
  const std::map<std::string, decode_stage> stages{{"header", decode_stage::header},
                                                   {"decode", decode_stage::decode},
                                                   {"resize", decode_stage::resize},
                                                   {"all", decode_stage::all}};
  a.what.stage = stages.at(a.stage);
  a.what.decode.image.fast = a.mode == "fast";
  a.what.decode.image.own_huffman = a.huffman == "own";
  a.what.decode = checked(a.what.decode);
  if (!a.crops.empty()) check_output(a.crops, crops_file, local_paths(a.what.urls));
  a.what.stop = stop_requested();
  std::atomic<std::uint64_t> rounds = 0;
  a.what.rounds_done = &rounds;
  progress shown("bench decode",
                 {.items = static_cast<std::uint64_t>(a.what.rounds), .noun = "round"},
                 [&] { return work_done{0, rounds}; });
  const auto report = run_decode_bench(a.shards.engine(e), a.what);
  shown.end();
  if (!a.crops.empty()) write_crops(report, a.crops);
  // Only these stages compare with libjpeg-turbo, which decodes and nothing else.
  const bool decodes = a.what.stage == decode_stage::decode || a.what.stage == decode_stage::all;
  return end_of_bench(
      report.seconds > 0, report.interrupted, a.json, [&] { return to_json(report, decodes); },
      [&] { print(report, decodes); });
}

}  // namespace

action add_bench_decode(CLI::App& bench) {
  CLI::App* decode = bench.add_subcommand(
      "decode",
      "measures the decoder's images/s beside libjpeg-turbo alone, and where the time goes");
  auto a = std::make_shared<bench_decode_arguments>();
  a->shards.add_to(*decode);
  decode->option_defaults()->group("Decoding");
  decode->add_option("--threads", a->what.threads, "decoding threads")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  decode->add_option("--size", a->what.decode.size, "width and height of decoded images in pixels")
      ->type_name("PIXELS")
      ->check(in_range(1, 16384))
      ->capture_default_str();
  decode->add_flag("--validation", a->validation,
                   "resize and centre crop instead of random-resized-crop and flip");
  decode->add_option("--stage", a->stage, "last step to measure")
      ->group("Measurement")
      ->check(CLI::IsMember({"header", "decode", "resize", "all"}))
      ->capture_default_str();
  decode->add_option("--rounds", a->what.rounds, "passes over all images; medians are reported")
      ->type_name("PASSES")
      ->group("Measurement")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  decode
      ->add_option("--write-crops", a->crops,
                   "write the crops, one line per image: x y width height mirrored")
      ->type_name("FILE")
      ->group("Output");
  decode->add_option("--mode", a->mode, "resampling of pixels")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
  decode
      ->add_option("--huffman", a->huffman, "which decoder of baseline JPEGs' Huffman codes to use")
      ->check(CLI::IsMember({"own", "library"}))
      ->capture_default_str();
  add_json(*decode, a->json);
  decode->footer("Example:\n  millrace bench decode train-000000.tar --threads 4");
  return [a](const environment& e) { return bench_decode(e, *a); };
}

}  // namespace millrace::cli
