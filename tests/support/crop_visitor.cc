// Decodes random crops of the photos of shards, and compares every byte with the same crop of the
// whole image, decoded by plain libjpeg-turbo and put through the same resampler.
//
//   crop_visitor CROPS-OF-EACH RESTART SHARD...
//
// RESTART: first rewrite each photo with restart markers every so many MCUs; 0: unchanged. Prints
// {"photos": n, "crops": n, "differing": n}.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "millrace/millrace.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "tools/bench/bare_jpeg.h"

namespace {

using namespace millrace;
using pixels = std::vector<std::uint8_t>;

// A training crop or a validation view, of some size.
view_of_image random_view(int width, int height, std::uint64_t photo, std::uint64_t n) {
  random_stream random(7, purpose::augment, photo, n);
  const int size = 16 + static_cast<int>(random.below(240));
  if (random.below(8) == 0) return resize_center_crop(width, height, size + 10, size);
  return random_resized_crop(width, height, size, {}, random);
}

pixels of_whole(const pixels& whole, int width, const view_of_image& view, resample_filter filter) {
  pixels out(static_cast<std::size_t>(view.window.width * view.window.height) * 3);
  resampler r;
  r.begin(resample_job::of(view, filter), out.data());
  for (int y = r.first_row(); y < r.end_row(); ++y) {
    const int at = (view.crop.y + y) * width + view.crop.x + r.first_column();
    r.add_row(whole.data() + static_cast<std::size_t>(at) * 4);
  }
  return out;
}

pixels by_decoder(jpeg_decoder& decoder, std::span<const std::byte> file, const view_of_image& view,
                  resample_filter filter) {
  pixels out(static_cast<std::size_t>(view.window.width * view.window.height) * 3);
  decoder
      .decode(
          file, {.filter = filter, .orient = false}, [&](int, int) { return view; },
          [&](const view_of_image&) { return std::span(out); })
      .value();
  return out;
}

int visit(int crops, int restart, std::vector<std::string> urls) {
  engine eng;
  auto data =
      eng.run(shards(std::move(urls), {.lanes = 1, .shuffle = false}) | untar() | group_by_key());
  bare_jpeg bare;
  jpeg_decoder decoder;
  std::uint64_t photos = 0;
  std::uint64_t done = 0;
  std::uint64_t differing = 0;
  for (const sample& s : data) {
    const field* image = s.find("jpg");
    if (image == nullptr) continue;
    std::vector<std::byte> file(image->data.span().begin(), image->data.span().end());
    if (restart > 0) file = with_restart_runs(file, restart).value();
    const auto size = decoder.read_size(file).value();
    pixels whole;
    if (!bare.decode_whole(file, false, whole)) continue;
    whole.resize(whole.size() + 1024);  // the resampler looks a little further than the last pixel
    for (int n = 0; n < crops; ++n, ++done) {
      const auto view = random_view(size.width, size.height, photos, static_cast<std::uint64_t>(n));
      const auto filter = static_cast<resample_filter>(n % 4);
      const bool is_same =
          of_whole(whole, size.width, view, filter) == by_decoder(decoder, file, view, filter);
      differing += is_same ? 0 : 1;
    }
    ++photos;
  }
  const nlohmann::json found{{"photos", photos}, {"crops", done}, {"differing", differing}};
  fmt::print("{}\n", found.dump());
  return differing == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count < 4) throw std::invalid_argument("crop_visitor CROPS RESTART SHARD...");
    return visit(std::stoi(arguments[1]), std::stoi(arguments[2]),
                 {arguments + 3, arguments + count});
  } catch (const std::exception& wrong) {
    fmt::print(stderr, "{}\n", wrong.what());
    return 2;
  }
}
