#include "tools/write/fake.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>
#include <utility>

#include "engine/base/random.h"
#include "engine/files/written_file.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/formats/tar_writer.h"
#include "tools/jobs/job_record.h"
#include "tools/write/shard_rules.h"

namespace millrace {
namespace {

constexpr int jpeg_quality = 90;

using color = std::array<double, 3>;

// Hue in [0, 1) at full saturation, value in [0, 1].
color from_hue(double hue, double value) {
  color c{};
  for (std::size_t i = 0; i < 3; ++i) {
    const double turn = hue * 6 + static_cast<double>(i) * 2;
    const double k = std::abs(std::fmod(turn, 6.0) - 3.0) - 1.0;
    c[i] = value * std::clamp(k, 0.0, 1.0);
  }
  return c;
}

}  // namespace

std::vector<std::uint8_t> fake_image(const fake_options& options, int label, std::uint64_t sample) {
  random_stream random(options.seed, purpose::fake_data, 0, sample);
  const int hues = (options.classes + 1) / 2;
  const double size = options.size;
  const int which_hue = label / 2;
  const double hue = (which_hue + random.uniform(-0.15, 0.15)) / hues;
  const double upright = label % 2 == 0 ? 0.0 : std::numbers::pi / 2;
  const double angle = upright + random.uniform(-0.2, 0.2);
  const double stripe = size * random.uniform(0.04, 0.12);
  const double phase = random.uniform(0, 2 * stripe);
  const double x0 = size * random.uniform();
  const double y0 = size * random.uniform();
  const double radius = size * random.uniform(0.1, 0.3);
  const double gray = random.uniform(0.2, 0.8);
  const color stripes = from_hue(hue, random.uniform(0.6, 1.0));
  const double ground = random.uniform(0.1, 0.9);
  std::vector<std::uint8_t> rgb;
  rgb.reserve(static_cast<std::size_t>(options.size) * static_cast<std::size_t>(options.size) * 3);
  for (int y = 0; y < options.size; ++y) {
    for (int x = 0; x < options.size; ++x) {
      const double along = x * std::cos(angle) + y * std::sin(angle) + 2 * size + phase;
      const bool on_stripe = std::fmod(along, 2 * stripe) < stripe;
      const bool on_disc = std::hypot(x - x0, y - y0) < radius;
      for (std::size_t c = 0; c < 3; ++c) {
        const double value = on_disc ? gray : on_stripe ? stripes[c] : ground;
        const double noisy = value + random.uniform(-0.15, 0.15);
        rgb.push_back(static_cast<std::uint8_t>(std::clamp(noisy * 255, 0.0, 255.0)));
      }
    }
  }
  return rgb;
}

bool write_fake_shards(const std::vector<std::string>& paths, const fake_options& options,
                       const std::function<bool(std::size_t shards)>& goes_on) {
  remove_partial_files(paths);  // their room may be needed
  const auto shards = static_cast<std::uint64_t>(paths.size());
  const auto samples = static_cast<std::uint64_t>(options.samples);
  std::vector<std::optional<file_stamp>> before(paths.size());
  if (options.overwrite) std::ranges::transform(paths, before.begin(), stamp_of_file);
  // Behind the stamps: what a run that has ended by now has written is in them.
  check_not_being_written(paths);
  std::unique_ptr<tar_writer> next;
  for (std::uint64_t s = 0; s < shards; ++s) {
    const auto shard = next ? std::move(next) : std::make_unique<tar_writer>(paths[s]);
    for (std::uint64_t i = samples * s / shards; i < samples * (s + 1) / shards; ++i) {
      if (goes_on && !goes_on(s)) return false;
      random_stream draw(options.seed, purpose::fake_data, 1, i);
      const auto label = static_cast<int>(draw.below(static_cast<std::uint32_t>(options.classes)));
      const std::string key = fmt::format("{:08}", i);
      shard->add(key + ".jpg", encode_jpeg(fake_image(options, label, i), options.size,
                                           options.size, jpeg_quality));
      shard->add(key + ".cls", std::to_string(label));
    }
    // Others see by its partial file that this run lives: it has one until its last shard is there.
    if (s + 1 < shards && !is_device_path(paths[s + 1])) {
      next = std::make_unique<tar_writer>(paths[s + 1]);
    }
    shard->close_over(before[s]);
  }
  remove_partial_files(paths);
  return true;
}

}  // namespace millrace
