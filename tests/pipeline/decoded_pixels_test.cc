// Whatever options an image of any format is decoded with, its pixels equal those of the plain
// path: decoded whole, stored as raw RGB, then cut, scaled and oriented.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <span>

#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "pipeline/codecs/png.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/images/sample_decoder.h"
#include "tests/support/seed_files.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using pixels = std::vector<std::uint8_t>;
using named_file = std::pair<std::string, file_bytes>;

struct decoded_file {
  std::optional<pixels> rgb;
  view_of_image view;
  std::string error;
  int warnings = 0;
};

decoded_file decoded(std::span<const std::byte> file, const image_options& options,
                     const view_chooser& choose) {
  static image_decoder decoder;
  decoded_file out;
  pixels rgb;
  const auto place = [&](const view_of_image& v) {
    out.view = v;
    rgb.assign(output_bytes(v), 0);
    return std::span(rgb);
  };
  const auto done = decoder.decode(file, options, choose, place);
  out.warnings = decoder.warnings();
  if (done) {
    out.rgb = std::move(rgb);
  } else {
    out.error = done.error().what();
  }
  return out;
}

view_of_image as_it_is(int width, int height) {
  return whole_image(width, height);
}
view_of_image plain_crop(const pixel_box& crop) {
  return {crop, crop.width, crop.height, {0, 0, crop.width, crop.height}, false};
}

// Whole and partial, smaller by less and by more than a half, larger, mirrored.
std::vector<view_chooser> views() {
  const auto scaled = [](pixel_box crop, int w, int h, bool flip) {
    return view_of_image{crop, w, h, {0, 0, w, h}, flip};
  };
  return {as_it_is,
          [=](int w, int h) {
            return scaled({0, 0, w, h}, std::max(1, w / 5), std::max(1, h / 5), false);
          },
          [=](int w, int h) {
            return scaled({w / 3, h / 4, w - w / 3, h - h / 4}, std::max(1, w / 8),
                          std::max(1, h / 7), true);
          },
          [=](int w, int h) {
            return scaled({0, h / 2, (w + 1) / 2, (h + 1) / 2}, w + 3, h + 5, true);
          },
          [](int w, int h) { return resize_center_crop(w, h, 9, 7); }};
}

std::vector<named_file> files() {
  auto out = seed_files("image");
  std::ranges::copy(seed_files("jpeg"), std::back_inserter(out));
  const pixels rgb = fake_image({.size = 120}, 3, 1);
  out.emplace_back("photo.jpg", encode_jpeg(rgb, 120, 120, 90));
  out.emplace_back("runs.jpg", with_restart_runs(out.back().second, 2).value());
  // With a thumbnail, which has an end marker of its own, before the image.
  file_bytes thumbnail = encode_jpeg(fake_image({.size = 16}, 3, 1), 16, 16, 90);
  const std::size_t length = thumbnail.size() + 2;
  for (const std::size_t byte :
       {length & 0xFF, length >> 8, std::size_t{0xE1}, std::size_t{0xFF}}) {
    thumbnail.insert(thumbnail.begin(), static_cast<std::byte>(byte));
  }
  file_bytes with_thumbnail = encode_jpeg(rgb, 120, 120, 90);
  with_thumbnail.insert(with_thumbnail.begin() + 2, thumbnail.begin(), thumbnail.end());
  out.emplace_back("thumbnail.jpg", std::move(with_thumbnail));
  out.emplace_back("photo.png", encode_png(rgb, 120, 120));
  const std::string ppm = "P6 120 120 255\n" + std::string(rgb.begin(), rgb.end());
  const auto bytes = std::as_bytes(std::span(ppm));
  out.emplace_back("photo.ppm", file_bytes(bytes.begin(), bytes.end()));
  return out;
}

bool is_jpeg(const file_bytes& file) {
  return file.size() > 2 && file[0] == std::byte{0xFF} && file[1] == std::byte{0xD8};
}

// Root mean square of the differences.
double distance(const pixels& a, const pixels& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}
int largest_difference(const pixels& a, const pixels& b) {
  int most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// As in docs/images.md: bit-identical; slightly different if rows and columns are swapped, because
// the passes of the filter are swapped too (bicubic and lanczos overshoot between them); close for
// photos if JPEGs are decoded fast.
void expect_alike(const pixels& plain, const pixels& tried, const image_options& o,
                  const named_file& what, bool transposed, const std::string& how) {
  const std::string name = what.first + " " + how;
  ASSERT_EQ(plain.size(), tried.size()) << name;
  if (o.fast && is_jpeg(what.second)) {
    const bool is_photo = what.first == "photo.jpg" || what.first == "runs.jpg";
    if (is_photo) EXPECT_LT(distance(plain, tried), 28) << name;
  } else if (transposed) {
    const bool overshoots =
        o.filter == resample_filter::bicubic || o.filter == resample_filter::lanczos;
    EXPECT_LE(largest_difference(plain, tried), overshoots ? 60 : 1) << name;
  } else {
    ASSERT_EQ(plain, tried) << name;
  }
}

bool is_transposed(const file_bytes& file) {
  const auto shape = [&](bool orient) {
    return decoded(file, {.orient = orient}, as_it_is).view.window.width;
  };
  return shape(true) != shape(false);
}

// Each bit of the number is an option.
image_options options_of(unsigned bits) {
  image_options o;
  o.orient = (bits & 1) == 0;
  o.runs = (bits & 2) == 0;
  o.own_huffman = (bits & 4) == 0;
  o.lenient = (bits & 8) != 0;
  o.fast = (bits & 16) != 0;
  o.filter = static_cast<resample_filter>(bits >> 5);
  return o;
}

TEST(DecodedPixels, AreThoseOfThePlainPathWithEveryOption) {
  int compared = 0;
  for (const auto& [name, file] : files()) {
    const bool turned = is_transposed(file);
    for (unsigned bits = 0; bits < 128; ++bits) {
      const image_options o = options_of(bits);
      image_options simple{.orient = o.orient};
      simple.runs = simple.own_huffman = false;
      simple.lenient = o.lenient;
      const decoded_file whole = decoded(file, simple, as_it_is);
      if (!whole.rgb) {
        EXPECT_EQ(decoded(file, o, as_it_is).error, whole.error) << name << " " << bits;
        continue;
      }
      const image_options bare{.filter = o.filter,
                               .raw_width = whole.view.window.width,
                               .raw_height = whole.view.window.height};
      for (const view_chooser& view : views()) {
        const decoded_file plain = decoded(std::as_bytes(std::span(*whole.rgb)), bare, view);
        const decoded_file tried = decoded(file, o, view);
        ASSERT_TRUE(plain.rgb && tried.rgb) << name << " " << bits << " " << tried.error;
        ++compared;
        expect_alike(*plain.rgb, *tried.rgb, o, {name, file}, o.orient && turned,
                     std::to_string(bits));
      }
    }
  }
  EXPECT_GT(compared, 10'000);
}

sample with_image(const file_bytes& file, std::int64_t number) {
  sample s;
  s.key = std::to_string(number);
  s.where.offset = number * 512;
  s.fields.push_back(
      {"jpg", bytes::unowned({reinterpret_cast<const char*>(file.data()), file.size()})});
  return s;
}

// Also of cached images, the first time and later.
TEST(DecodedPixels, OfKeptImagesAreThoseOfTheirFiles) {
  sample_decoder decoder;
  for (const bool fast : {false, true}) {
    for (const bool train : {false, true}) {
      for (const bool on_disk : {false, true}) {
        decode_options o{.size = 16, .train = train, .label = "none"};
        decode_options keeps = o;
        keeps.image.fast = fast;
        keeps.cache = cache_decoded(
            {.bytes = 1 << 20, .folder = on_disk ? ::testing::TempDir() : std::string()});
        std::int64_t number = 0;
        for (const auto& [name, file] : files()) {
          const sample s = with_image(file, ++number);
          const std::size_t size = std::size_t{16} * 16 * 3;
          pixels plain(size);
          pixels first(size);
          pixels second(size);
          const auto c = checked(o);
          const auto k = checked(keeps);
          const auto decodes = decoder.decode(s, c, plain.data());
          ASSERT_EQ(decoder.decode(s, k, first.data()).has_value(), decodes.has_value()) << name;
          ASSERT_EQ(decoder.decode(s, k, second.data()).has_value(), decodes.has_value()) << name;
          if (!decodes) continue;
          EXPECT_EQ(first, second) << name << fast << train;
          expect_alike(plain, first, keeps.image, {name, file}, is_transposed(file), "kept");
        }
        EXPECT_GT(keeps.cache->hits(), 15U);
      }
    }
  }
}

// Which images fit depends on what came before, but their pixels do not, whether whole or damaged.
TEST(DecodedPixels, OfImagesThatHaveNoRoomAreThoseOfKeptOnes) {
  auto all = files();
  for (const auto& [name, file] : files()) {
    for (const std::size_t tenths : {5U, 8U, 9U}) {
      const auto end = file.begin() + static_cast<std::ptrdiff_t>(file.size() * tenths / 10);
      all.emplace_back(fmt::format("{}, {} tenths", name, tenths), file_bytes(file.begin(), end));
    }
  }
  sample_decoder decoder;
  int decoded = 0;
  int refused = 0;
  for (const bool fast : {false, true}) {
    for (const int resize : {0, 24}) {
      decode_options kept{.size = 16, .label = "none"};
      kept.image.fast = fast;
      decode_options full = kept;
      kept.cache = cache_decoded({.bytes = 64 << 20, .resize = resize});
      full.cache = cache_decoded({.bytes = 4096, .resize = resize});  // for one or two
      std::int64_t number = 0;
      for (const auto& [name, file] : all) {
        const sample s = with_image(file, ++number);
        pixels expected(std::size_t{16} * 16 * 3);
        pixels got(expected.size());
        const bool decodes = decoder.decode(s, checked(kept), expected.data()).has_value();
        ASSERT_EQ(decoder.decode(s, checked(full), got.data()).has_value(), decodes) << name;
        ++(decodes ? decoded : refused);
        if (decodes) {
          EXPECT_EQ(got, expected) << name << fast << resize;
        }
      }
      EXPECT_EQ(full.cache->hits(), 0U);
    }
  }
  EXPECT_GT(decoded, 60);
  EXPECT_GT(refused, 60);
}

// One cache serves plans that read other fields, decode in other ways, or read other bytes from the
// same place: each gets the same result as with a cache of its own.
TEST(DecodedPixels, OfPlansThatShareACacheAreThoseOfEachAlone) {
  const file_bytes one = encode_jpeg(fake_image({.size = 120}, 3, 1), 120, 120, 90);
  const file_bytes other = encode_jpeg(fake_image({.size = 120}, 7, 2), 120, 120, 60);
  sample s = with_image(one, 1);
  s.fields.push_back(s.fields.front());
  s.fields.back().extension = "other.jpg";
  s.fields.back().data = with_image(other, 1).fields.front().data;
  sample changed = s;
  std::swap(changed.fields.front().data, changed.fields.back().data);
  std::vector<decode_options> plans(6, {.size = 16, .train = false, .label = "none"});
  plans[0].images = s.fields.front().extension;
  plans[1].images = "other.jpg";
  plans[2].image.fast = true;
  plans[3].image.filter = resample_filter::bicubic;
  plans[4].image.orient = false;
  plans[5].image.limits.max_pixels = 100;  // too few for these images
  const auto shared = cache_decoded({.bytes = 1 << 20});
  sample_decoder decoder;
  for (int round = 0; round < 2; ++round) {
    for (const decode_options& plan : plans) {
      for (const sample* each : {&s, &changed}) {
        decode_options alone = plan;
        alone.cache = cache_decoded({.bytes = 1 << 20});
        decode_options together = plan;
        together.cache = shared;
        pixels expected(std::size_t{16} * 16 * 3);
        pixels got(expected.size());
        const bool decodes = decoder.decode(*each, checked(alone), expected.data()).has_value();
        ASSERT_EQ(decoder.decode(*each, checked(together), got.data()).has_value(), decodes);
        if (decodes) {
          EXPECT_EQ(got, expected) << &plan - plans.data() << " " << round;
        }
      }
    }
  }
  EXPECT_GE(shared->hits(), 10U);
}

// Truncates the file of cached images from outside, as if its disk had failed.
void cut_nameless_files(std::int64_t bytes) {
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(fd.path(), gone).string();
    if (target.find("millrace-decoded-") == target.npos) continue;
    EXPECT_EQ(truncate(fd.path().c_str(), bytes), 0);
  }
}

TEST(DecodedPixels, OfKeptImagesThatCannotBeReadAgainAreDecodedAgain) {
  decode_options o{.size = 16, .train = false, .label = "none"};
  o.cache = cache_decoded({.bytes = 1 << 20, .folder = ::testing::TempDir()});
  const decode_options keeps = checked(o);
  const file_bytes file = encode_jpeg(fake_image({.size = 120}, 3, 1), 120, 120, 90);
  sample_decoder decoder;
  std::vector<pixels> all;
  const auto decode = [&](std::int64_t number) {
    auto& out = all.emplace_back(std::size_t{16} * 16 * 3);
    ASSERT_TRUE(decoder.decode(with_image(file, number), keeps, out.data()));
    EXPECT_EQ(out, all.front());
  };
  decode(1);
  decode(2);
  decode(2);
  EXPECT_EQ(o.cache->hits(), 1U);
  cut_nameless_files(120 * 120 * 3 + 100);  // within the second
  decode(1);
  decode(2);
  EXPECT_EQ(o.cache->hits(), 2U);
  EXPECT_NE(o.cache->summary().find("1 could not be written or read again"), std::string::npos)
      << o.cache->summary();
  decode(2);  // cached again, elsewhere
  EXPECT_EQ(o.cache->hits(), 3U);
}

// A part of a whole image of this width.
pixels cut_out(const pixels& whole, int width, const pixel_box& crop) {
  pixels out;
  for (int y = crop.y; y < crop.y + crop.height; ++y) {
    const auto row = whole.begin() + (std::ptrdiff_t{y} * width + crop.x) * 3;
    out.insert(out.end(), row, row + std::ptrdiff_t{crop.width} * 3);
  }
  return out;
}

// libjpeg upsamples a region's chroma differently from the whole image's; that must not be visible.
TEST(DecodedPixels, OfNarrowCropsAreThoseOfTheWholeImage) {
  for (int width = 1; width <= 64; ++width) {
    const pixels rgb = fake_image({.size = 64}, width % 10, static_cast<std::uint64_t>(width));
    constexpr int height = 17;
    const auto file = encode_jpeg(
        std::span(rgb).first(static_cast<std::size_t>(width) * height * 3), width, height, 90);
    const auto runs = with_restart_runs(file, 1).value();
    const pixels whole = decoded(file, {}, as_it_is).rgb.value();
    for (int x = 0; x < width; ++x) {
      for (const int w : {1, 2, 3, 4, 5, 7, 16, 17, width - x}) {
        if (x + w > width) continue;
        const pixel_box crop{x, 3, w, 9};
        for (const auto* f : {&file, &runs}) {
          const auto part = decoded(*f, {}, [&](int, int) { return plain_crop(crop); });
          ASSERT_TRUE(part.rgb) << part.error;
          ASSERT_EQ(*part.rgb, cut_out(whole, width, crop))
              << width << ": " << x << " + " << w << (f == &runs ? " runs" : "");
        }
      }
    }
  }
}

// Compares views drawn for several epochs.
void expect_kept_as_decoded(const file_bytes& file, const image_options& how) {
  const decode_options plain = checked({.size = 16, .label = "none", .image = how});
  decode_options keeps = plain;
  keeps.cache = cache_decoded({.bytes = 1 << 20});
  sample_decoder decoder;
  sample s = with_image(file, 1);
  for (s.where.epoch = 0; s.where.epoch < 9; ++s.where.epoch) {
    pixels expected(std::size_t{16} * 16 * 3);
    pixels kept(expected.size());
    ASSERT_TRUE(decoder.decode(s, plain, expected.data()));
    ASSERT_TRUE(decoder.decode(s, keeps, kept.data()));
    ASSERT_EQ(kept, expected) << s.where.epoch;
  }
}

// A progressive file without its last scans, with and without an end marker in their place, cut
// after and within each of its scans.
std::vector<file_bytes> without_last_scans(const file_bytes& file) {
  static constexpr std::array scan{std::byte{0xFF}, std::byte{0xDA}};
  std::vector<file_bytes> out;
  auto at = std::ranges::search(file, scan).end();
  for (;;) {
    const auto next = std::ranges::search(at, file.end(), scan.begin(), scan.end());
    const auto end = next.begin();
    if (end == file.end()) return out;
    file_bytes& ended = out.emplace_back(file.begin(), end);
    ended.insert(ended.end(), {std::byte{0xFF}, std::byte{0xD9}});
    out.emplace_back(file.begin(), end);
    out.emplace_back(file.begin(), at + (end - at) / 4);
    at = next.end();
  }
}

// libjpeg smooths blocks with incomplete coefficients using their neighbours.
TEST(DecodedPixels, OfCropsWithoutTheLastScansAreThoseOfTheWholeImage) {
  constexpr int width = 61;
  constexpr int height = 45;
  const auto seeds = seed_files("jpeg");
  const auto file = std::ranges::find(seeds, "jpeg/progressive", &named_file::first)->second;
  const image_options fills{.lenient = true, .fill_truncated = true};
  const auto all = without_last_scans(file);
  EXPECT_EQ(all.size(), 27U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto whole = decoded(all[i], fills, as_it_is).rgb;
    ASSERT_TRUE(whole) << i;
    EXPECT_FALSE(with_restart_runs(all[i], 4)) << i << ": other pixels";
    for (int y = 0; y < height; y += 3) {
      for (int x = 0; x < width; x += 4) {
        const pixel_box crop{x, y, std::min(width - x, 1 + (x * y + 7) % 40),
                             std::min(height - y, 1 + (x + y) % 17)};
        const auto part = decoded(all[i], fills, [&](int, int) { return plain_crop(crop); }).rgb;
        ASSERT_TRUE(part) << i;
        ASSERT_EQ(*part, cut_out(*whole, width, crop)) << i << ": " << x << ", " << y;
      }
    }
    expect_kept_as_decoded(all[i], fills);
  }
}

// Cut at any byte, an image is an error in every view, or nothing of it is missing. If filled with
// gray, it is counted.
TEST(DecodedPixels, OfCutFilesAreAnErrorOrAllThere) {
  int errors = 0;
  int harmless = 0;
  for (const auto& [name, file] : files()) {
    const decoded_file whole = decoded(file, {}, as_it_is);
    if (!whole.rgb) continue;
    const auto top = [](int w, int h) { return plain_crop({0, 0, w, std::max(1, h / 4)}); };
    const decoded_file whole_top = decoded(file, {}, top);
    const std::size_t step = file.size() > 4000 ? 97 : 1;
    for (std::size_t size = 0; size < file.size(); size += step) {
      const auto cut = std::span(file).first(size);
      const decoded_file strict = decoded(cut, {}, as_it_is);
      const decoded_file strict_top = decoded(cut, {}, top);
      ASSERT_EQ(strict.rgb.has_value(), strict_top.rgb.has_value())
          << name << " of " << size << ": " << strict.error << strict_top.error;
      if (strict.rgb) {
        ++harmless;
        ASSERT_EQ(*strict.rgb, *whole.rgb) << name << " of " << size;
        ASSERT_EQ(*strict_top.rgb, *whole_top.rgb) << name << " of " << size;
        continue;
      }
      ++errors;
      const image_options fills{.fill_truncated = true};
      const decoded_file filled = decoded(cut, fills, as_it_is);
      const decoded_file filled_top = decoded(cut, fills, top);
      if (filled.rgb) {
        ASSERT_GT(filled.warnings, 0) << name << " of " << size;
        ASSERT_GT(filled_top.warnings, 0) << name << " of " << size;
      }
    }
  }
  EXPECT_GT(errors, 10'000);
  EXPECT_GT(harmless, 10);
}

TEST(DecodedPixels, OfThinImagesAreOfASizeThatCanBe) {
  for (const bool tall : {false, true}) {
    const int w = tall ? 1 : 1'000'000;
    const int h = tall ? 1'000'000 : 1;
    const auto v = resize_center_crop(w, h, 2341, 2048);
    EXPECT_GE(std::min(v.window.x, v.window.y), 0);
    EXPECT_EQ(tall ? v.scaled_width : v.scaled_height, 2341);
    EXPECT_GE(tall ? v.scaled_height : v.scaled_width, 1 << 30);
    const std::string file = fmt::format("P5 {} {} 255\n", w, h) + std::string(1'000'000, 'x');
    const auto out = decoded(std::as_bytes(std::span(file)), {},
                             [](int a, int b) { return resize_center_crop(a, b, 2341, 2048); });
    ASSERT_TRUE(out.rgb);
    EXPECT_EQ(*out.rgb, pixels(out.rgb->size(), 'x'));
  }
}

}  // namespace
}  // namespace millrace
