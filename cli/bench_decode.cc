#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/decode_bench.h"
#include "cli/command.h"
#include "cli/interrupt.h"

namespace millrace::cli {
namespace {

struct arguments {
  shard_arguments shards;
  decode_bench_options what;
  bool validation = false;
  std::string crops;
  std::string stage = "all";
  std::string mode = "exact";
  std::string huffman = "own";
  bool json = false;
};

nlohmann::json to_json(const decode_bench_report& r) {
  return {{"bytes", r.bytes},
          {"seconds", r.seconds},
          {"mb_per_s", static_cast<double>(r.bytes) / 1e6 / r.seconds},
          {"cpu_seconds", r.cpu_seconds},
          {"samples", r.images},
          {"samples_per_s", r.images_per_s()},
          {"images_per_s", r.images_per_s()},
          {"images_per_s_per_core", static_cast<double>(r.images) / r.cpu_seconds},
          {"failed", r.failed},
          {"threads", r.threads},
          {"limit_images_per_s", r.limit_images_per_s()},
          {"of_limit", r.of_limit},
          {"whole_images_per_s", r.whole_images_per_s()},
          {"header_us", r.header_us},
          {"pixels_us", r.pixels_us},
          {"resize_us", r.resize_us},
          {"other_us", r.other_us},
          {"interrupted", r.interrupted}};
}

// Lines of x, y, width and height of the crop, and whether it is mirrored, for comparisons.
void write_crops(const decode_bench_report& r, const std::string& path) {
  std::ofstream out(path);
  for (const view_of_image& v : r.views) {
    out << fmt::format("{} {} {} {} {}\n", v.crop.x, v.crop.y, v.crop.width, v.crop.height,
                       v.flip ? 1 : 0);
  }
  if (!out.flush()) throw failure(error(errc::io_failed, "cannot write the crops").at(path));
}

void print(const decode_bench_report& r) {
  fmt::print("images    {}, {:.1f} KB each{}\n", r.images,
             static_cast<double>(r.bytes) / 1e3 / static_cast<double>(r.images),
             r.failed > 0 ? fmt::format("; {} more cannot be decoded", r.failed) : "");
  fmt::print("rate      {:.0f} images/s by {} threads, {:.0f} for each core's second\n",
             r.images_per_s(), r.threads, static_cast<double>(r.images) / r.cpu_seconds);
  fmt::print(
      "limit     {:.0f} images/s: libjpeg-turbo decoding the same regions, and nothing else\n",
      r.limit_images_per_s());
  fmt::print("reached   {:.1f} % of it\n", 100 * r.of_limit);
  fmt::print(
      "beside    {:.0f} images/s: whole images by the fast transform, areas averaged (FFCV's "
      "way)\n",
      r.whole_images_per_s());
  fmt::print(
      "of one    {:.0f} us: alone {:.0f} us header, {:.0f} us pixels, {:.0f} us resampling\n",
      r.header_us + r.pixels_us + r.resize_us + r.other_us, r.header_us, r.pixels_us, r.resize_us);
}

int bench_decode(const environment& e, arguments a) {
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
  const auto report = run_decode_bench(a.shards.engine(e), a.what, interrupted());
  if (!a.crops.empty()) write_crops(report, a.crops);
  if (report.seconds > 0 && a.json) fmt::print("{}\n", to_json(report).dump());
  if (report.seconds > 0 && !a.json) print(report);
  return report.interrupted ? 130 : 0;
}

}  // namespace

action add_bench_decode(CLI::App& bench) {
  CLI::App* decode = bench.add_subcommand(
      "decode", "images/s of the decoder, beside the bare library, and where the time goes");
  auto a = std::make_shared<arguments>();
  a->shards.add_to(*decode);
  decode->add_option("--threads", a->what.threads, "decoders side by side")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  decode->add_option("--size", a->what.decode.size, "of the output, in pixels: size x size")
      ->check(CLI::Range(1, 16384))
      ->capture_default_str();
  decode->add_flag("--validation", a->validation,
                   "resize and centre crop, in the place of random-resized-crop and flip");
  decode->add_option("--stage", a->stage, "how far: header, decode, resize or all")
      ->check(CLI::IsMember({"header", "decode", "resize", "all"}))
      ->capture_default_str();
  decode->add_option("--rounds", a->what.rounds, "over all images; medians count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  decode->add_option("--write-crops", a->crops,
                     "a file for the crops, a line for each image: x y width height mirrored");
  decode->add_option("--mode", a->mode, "exact, or fast")->check(CLI::IsMember({"exact", "fast"}));
  decode
      ->add_option("--huffman", a->huffman,
                   "who decodes baseline JPEGs' Huffman codes: own, library")
      ->check(CLI::IsMember({"own", "library"}))
      ->capture_default_str();
  decode->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return bench_decode(e, *a); };
}

}  // namespace millrace::cli
