// From JPEG files to the pixels of a slot.
#include <benchmark/benchmark.h>

#include <vector>

#include "engine/base/random.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/pixels/kernels.h"
#include "pipeline/pixels/options.h"
#include "pipeline/pixels/resample.h"
#include "pipeline/pixels/view.h"

namespace millrace {
namespace {

constexpr int width = 500;  // of ImageNet's photos, about
constexpr int height = 375;

// Slopes and noise: as many coefficients as in a photo, about.
std::vector<std::byte> photo() {
  std::vector<std::uint8_t> rgb;
  random_stream random(1, purpose::shuffle, 0, 0);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        rgb.push_back(
            static_cast<std::uint8_t>((x * (c + 1) + y) / 8 + static_cast<int>(random.below(24))));
      }
    }
  }
  return encode_jpeg(rgb, width, height, 85);
}

void decode(benchmark::State& bench, const view_of_image& view, const image_options& options) {
  const auto file = photo();
  jpeg_decoder decoder;
  std::vector<std::uint8_t> slot(output_bytes(view));
  const auto choose = [&](int, int) { return view; };
  const auto place = [&](const view_of_image&) { return std::span(slot); };
  for (auto _ : bench) {
    if (!decoder.decode(file, options, choose, place)) bench.SkipWithError("not decoded");
  }
  bench.SetItemsProcessed(bench.iterations());
  bench.SetBytesProcessed(bench.iterations() * static_cast<std::int64_t>(file.size()));
}

void jpeg_header(benchmark::State& bench) {
  const auto file = photo();
  jpeg_decoder decoder;
  for (auto _ : bench) benchmark::DoNotOptimize(decoder.read_size(file));
  bench.SetItemsProcessed(bench.iterations());
}
BENCHMARK(jpeg_header);

// Next to nothing but Huffman codes: all of them, for the pixels of one corner.
void jpeg_huffman_codes(benchmark::State& bench) {
  decode(bench,
         {.crop = {width - 16, height - 16, 16, 16},
          .scaled_width = 16,
          .scaled_height = 16,
          .window = {0, 0, 16, 16}},
         {});
}
BENCHMARK(jpeg_huffman_codes)->Unit(benchmark::kMicrosecond);

void jpeg_to_slot(benchmark::State& bench) {
  decode(bench, whole_image(width, height), {});
}
BENCHMARK(jpeg_to_slot)->Unit(benchmark::kMicrosecond);

void jpeg_resized_to_slot(benchmark::State& bench) {
  image_options options;
  options.fast = bench.range(0) != 0;
  decode(bench, resize_center_crop(width, height, 256, 224), options);
}
BENCHMARK(jpeg_resized_to_slot)->ArgName("fast")->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

// Rows that are there already, to 224 x 224.
void resample(benchmark::State& bench) {
  const view_of_image view = resize_center_crop(width, height, 256, 224);
  const auto job = resample_job::of(view, static_cast<resample_filter>(bench.range(0)));
  resampler rows;
  std::vector<std::uint8_t> out(output_bytes(view));
  const std::vector<std::uint8_t> row(std::size_t{width + 64} * 4, 100);
  for (auto _ : bench) {
    rows.begin(job, out.data());
    for (int y = rows.first_row(); y < rows.end_row(); ++y) rows.add_row(row.data());
    benchmark::DoNotOptimize(out.data());
  }
  bench.SetItemsProcessed(bench.iterations());
}
BENCHMARK(resample)
    ->ArgName("filter")
    ->Arg(static_cast<int>(resample_filter::bilinear))
    ->Arg(static_cast<int>(resample_filter::lanczos))
    ->Unit(benchmark::kMicrosecond);

void find_marker(benchmark::State& bench) {
  const std::vector<std::byte> data(64 << 10, std::byte{1});
  for (auto _ : bench) benchmark::DoNotOptimize(kernels::find_marker(data, 0));
  bench.SetBytesProcessed(bench.iterations() * static_cast<std::int64_t>(data.size()));
}
BENCHMARK(find_marker);

}  // namespace
}  // namespace millrace
