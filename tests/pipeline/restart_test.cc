#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_headers.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using file_bytes = std::vector<std::byte>;
using pixels = std::vector<std::uint8_t>;

constexpr int photo_side = 203;  // not a multiple of an MCU

class Restart : public ::testing::Test {
 protected:
  static file_bytes photo() {
    return encode_jpeg(fake_image({.size = photo_side}, 3, 1), photo_side, photo_side, 92);
  }
  result<pixels> decode(std::span<const std::byte> file, const view_of_image& view,
                        const image_options& options = {}) {
    pixels out;
    const auto choose = [&](int, int) { return view; };
    const auto room = [&](const view_of_image& v) {
      out.resize(static_cast<std::size_t>(v.window.width * v.window.height) * 3);
      return std::span(out);
    };
    if (auto done = decoder_.decode(file, options, choose, room); !done) return done.error();
    return out;
  }
  static view_of_image random_view(std::uint64_t i, int width = photo_side,
                                   int height = photo_side) {
    return random_resized_crop(width, height, 61, {}, {9, purpose::augment, 0, i});
  }
  static view_of_image plain(const pixel_box& crop) {
    return {crop, crop.width, crop.height, {0, 0, crop.width, crop.height}, false};
  }
  // The positions of the restart markers.
  static std::vector<std::size_t> markers(const file_bytes& file) {
    std::vector<std::size_t> out;
    jpeg_headers headers;
    headers.read(file);
    for (std::size_t i = headers.runs.scan_at; i + 1 < file.size(); ++i) {
      const auto code = std::to_integer<unsigned>(file[i + 1]);
      if (file[i] == std::byte{0xFF} && code >= 0xD0 && code <= 0xD7) out.push_back(i);
    }
    return out;
  }

  jpeg_decoder decoder_;
};

TEST_F(Restart, RewrittenFilesHoldTheSamePixels) {
  const file_bytes original = photo();
  for (const int mcus : {1, 2, 4, 13, 1000}) {
    const file_bytes file = with_restart_runs(original, mcus).value();
    jpeg_headers headers;
    headers.read(file);
    ASSERT_TRUE(headers.has_runs);
    EXPECT_EQ(headers.runs.mcus_across, 13);
    EXPECT_EQ(headers.runs.interval, mcus == 1 ? 1 : 13);  // 13 has no other divisors
    for (std::uint64_t i = 0; i < 100; ++i) {
      const view_of_image view = random_view(i);
      const auto expected = decode(original, view).value();
      ASSERT_EQ(decode(file, view).value(), expected) << mcus << ", view " << i;
      ASSERT_EQ(decode(file, view, {.runs = false}).value(), expected) << mcus << ", view " << i;
    }
  }
}

TEST_F(Restart, RegionsAtEveryPlaceAreExact) {
  const file_bytes file = with_restart_runs(photo(), 1).value();
  const auto whole = decode(file, plain({0, 0, photo_side, photo_side})).value();
  for (int y = 0; y < photo_side - 20; y += 7) {
    for (int x = 0; x < photo_side - 20; x += 3) {
      const pixel_box box{x, y, 20, 20};
      const auto part = decode(file, plain(box)).value();
      for (std::size_t row = 0; row < 20; ++row) {
        const auto from =
            ((static_cast<std::size_t>(y) + row) * photo_side + static_cast<std::size_t>(x)) * 3;
        ASSERT_TRUE(std::equal(part.begin() + static_cast<std::ptrdiff_t>(row * 60),
                               part.begin() + static_cast<std::ptrdiff_t>(row * 60 + 60),
                               whole.begin() + static_cast<std::ptrdiff_t>(from)))
            << x << "," << y << " row " << row;
      }
    }
  }
}

TEST_F(Restart, OnlyTheRunsUnderTheRegionAreDecoded) {
  file_bytes file = with_restart_runs(photo(), 1).value();
  const auto at = markers(file);
  const view_of_image view = plain({100, 100, 40, 40});
  const auto expected = decode(file, view).value();
  // Runs of the first row and the first column are not in the region.
  for (const std::size_t run : {13U * 7, 13U * 6, 3U}) {
    file.erase(file.begin() + static_cast<std::ptrdiff_t>(at[run] + 2),
               file.begin() + static_cast<std::ptrdiff_t>(at[run + 1]));
  }
  EXPECT_EQ(decode(file, view).value(), expected);
  EXPECT_FALSE(decode(file, view, {.runs = false}));
}

// Whatever is wrong with the markers, the result is the same as without them.
TEST_F(Restart, MarkersThatAreWrongFallBackToTheOrdinaryPath) {
  const file_bytes good = with_restart_runs(photo(), 1).value();
  const auto at = markers(good);
  const view_of_image view = plain({100, 100, 40, 40});
  const auto expect_same = [&](const file_bytes& file, const char* what) {
    for (const bool lenient : {false, true}) {
      const auto with = decode(file, view, {.lenient = lenient});
      const int warnings = decoder_.warnings();
      const auto without = decode(file, view, {.lenient = lenient, .runs = false});
      EXPECT_EQ(warnings, decoder_.warnings()) << what;
      ASSERT_EQ(with.has_value(), without.has_value()) << what;
      if (with) {
        EXPECT_EQ(*with, *without) << what;
      } else {
        EXPECT_EQ(with.error().message(), without.error().message()) << what;
      }
    }
  };
  file_bytes file = good;
  std::swap(file[at[20] + 1], file[at[21] + 1]);
  expect_same(file, "out of order");
  file = good;
  file.erase(file.begin() + static_cast<std::ptrdiff_t>(at[20]),
             file.begin() + static_cast<std::ptrdiff_t>(at[20] + 2));
  expect_same(file, "missing");
  file = good;
  file.resize(at[100]);
  expect_same(file, "cut");
  // Runs in the region that lack their last bytes; libjpeg's fast decoder looks ahead at some of
  // these without needing them.
  for (const std::size_t run : {13U * 7 + 7, 13U * 8 + 8}) {
    for (std::size_t n = 1; n < 12; ++n) {
      file = good;
      file.erase(file.begin() + static_cast<std::ptrdiff_t>(at[run] - n),
                 file.begin() + static_cast<std::ptrdiff_t>(at[run]));
      expect_same(file, "a run that is cut");
    }
  }
  file = good;
  file[at[100] + 5] = std::byte{0xFF};
  file[at[100] + 6] = std::byte{0xD9};
  expect_same(file, "an end too early");
}

TEST_F(Restart, WhatCannotBeRewrittenIsAnError) {
  file_bytes file = photo();
  EXPECT_EQ(with_restart_runs(file, 4, {.max_pixels = 100}).error().kind(), errc::too_large);
  file.resize(file.size() / 2);
  EXPECT_EQ(with_restart_runs(file, 4).error().kind(), errc::bad_image);
  EXPECT_EQ(with_restart_runs({}, 4).error().kind(), errc::bad_image);
}

// The library searches its list of markers for each one.
TEST_F(Restart, FilesOfVeryManyMarkersAreLeftAsTheyAre) {
  const file_bytes original = photo();
  constexpr std::array marker = {std::byte{0xFF}, std::byte{0xE5}, std::byte{0}, std::byte{2}};
  const auto with_markers = [&](int count) {
    file_bytes out(original.begin(), original.begin() + 2);
    for (int i = 0; i < count; ++i) out.insert(out.end(), marker.begin(), marker.end());
    out.insert(out.end(), original.begin() + 2, original.end());
    return out;
  };
  EXPECT_TRUE(with_restart_runs(with_markers(1000), 4));
  file_bytes at_the_end = original;
  for (int i = 0; i < 300'000; ++i) {
    at_the_end.insert(at_the_end.end() - 2, marker.begin(), marker.end());
  }
  for (const file_bytes& file : {with_markers(300'000), at_the_end}) {
    const auto many = with_restart_runs(file, 4);
    ASSERT_FALSE(many);
    EXPECT_EQ(many.error().kind(), errc::too_large);
    EXPECT_NE(many.error().message().find("more than 10000 markers"), std::string::npos);
  }
}

// Gain maps, videos and further images follow; markers refer to them by offset.
TEST_F(Restart, FilesWithDataAfterTheirEndAreLeftAsTheyAre) {
  for (const std::size_t more : {1U, 2U, 5000U}) {
    file_bytes file = photo();
    ASSERT_TRUE(with_restart_runs(file, 4));
    file.resize(file.size() + more, std::byte{7});
    const auto made = with_restart_runs(file, 4);
    ASSERT_FALSE(made) << more;
    EXPECT_EQ(made.error().kind(), errc::bad_image);
    EXPECT_NE(made.error().message().find("follow its end"), std::string::npos);
  }
}

// An APP1 segment with an orientation and nothing else.
file_bytes with_orientation(const file_bytes& file, int number, bool big_endian) {
  std::string tiff = big_endian ? std::string("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 19)
                                : std::string("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", 18);
  tiff += static_cast<char>(number);
  tiff += std::string(8, '\0');
  const std::string segment = std::string("Exif\0\0", 6) + tiff;
  const std::size_t length = segment.size() + 2;
  file_bytes out(file.begin(), file.begin() + 2);
  for (const unsigned b :
       {0xFFU, 0xE1U, static_cast<unsigned>(length >> 8), static_cast<unsigned>(length & 255)}) {
    out.push_back(static_cast<std::byte>(b));
  }
  for (const char c : segment) out.push_back(static_cast<std::byte>(c));
  out.insert(out.end(), file.begin() + 2, file.end());
  return out;
}

TEST_F(Restart, ExifOrientationsAreApplied) {
  constexpr int w = 50;
  constexpr int h = 34;
  const auto square = fake_image({.size = w}, 3, 1);
  const file_bytes file = encode_jpeg(std::span(square).first(std::size_t{w} * h * 3), w, h, 95);
  const auto stored = decode(file, plain({0, 0, w, h})).value();
  const auto at = [&](int x, int y) {
    return (static_cast<std::size_t>(y) * w + static_cast<std::size_t>(x)) * 3;
  };
  for (int number = 1; number <= 8; ++number) {
    const bool turned = number >= 5;
    const int width = turned ? h : w;
    const int height = turned ? w : h;
    for (const bool big_endian : {false, true}) {
      const auto oriented = with_orientation(file, number, big_endian);
      for (const bool flip : {false, true}) {
        view_of_image view = plain({5, 7, width - 9, height - 8});
        view.flip = flip;
        const auto out = decode(oriented, view).value();
        std::size_t i = 0;
        for (int row = 0; row < view.crop.height; ++row) {
          for (int column = 0; column < view.crop.width; ++column, i += 3) {
            const int x = view.crop.x + (flip ? view.crop.width - 1 - column : column);
            const int y = view.crop.y + row;
            // The stored pixel at (x, y) of the oriented image, from EXIF's definition of each
            // number.
            const std::size_t from = number == 1   ? at(x, y)
                                     : number == 2 ? at(w - 1 - x, y)
                                     : number == 3 ? at(w - 1 - x, h - 1 - y)
                                     : number == 4 ? at(x, h - 1 - y)
                                     : number == 5 ? at(y, x)
                                     : number == 6 ? at(y, h - 1 - x)
                                     : number == 7 ? at(w - 1 - y, h - 1 - x)
                                                   : at(w - 1 - y, x);
            ASSERT_EQ(out[i], stored[from]) << number << " at " << x << "," << y;
          }
        }
      }
      EXPECT_EQ(decode(oriented, plain({0, 0, w, h}), {.orient = false}).value(), stored);
    }
  }
}

TEST_F(Restart, FastIsNearAndNotTheSame) {
  const auto image = fake_image({.size = 800}, 3, 1);
  const file_bytes file = encode_jpeg(image, 800, 800, 92);
  for (const int mcus : {0, 5}) {
    const file_bytes source = mcus == 0 ? file : with_restart_runs(file, mcus).value();
    int differing = 0;
    for (std::uint64_t i = 0; i < 50; ++i) {
      const view_of_image view = random_view(i, 800, 800);
      const auto exact = decode(source, view).value();
      const auto fast = decode(source, view, {.fast = true}).value();
      double squares = 0;
      for (std::size_t k = 0; k < exact.size(); ++k) {
        const double d = static_cast<double>(exact[k]) - fast[k];
        squares += d * d;
      }
      EXPECT_LT(squares / static_cast<double>(exact.size()), 65.0) << i;  // 30 dB
      differing += squares > 0 ? 1 : 0;
    }
    EXPECT_GT(differing, 40);
  }
}

}  // namespace
}  // namespace millrace
