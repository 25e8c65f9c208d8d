// A damaged image is one in every view, and a damaged image's preview is never taken for it.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/fake.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/images/jpeg.h"
#include "pipeline/images/png.h"

namespace millrace {
namespace {

class DamagedImages : public ::testing::Test {
 protected:
  struct found_image {
    int width = 0;  // 0 where it is an error
    int warnings = 0;
    std::vector<std::uint8_t> rgb;
    std::string error;
  };

  // Its topmost rows alone; all of them with 0.
  found_image found(std::string_view file, const image_options& options = {}, int rows = 0) {
    found_image out;
    const auto place = [&](const view_of_image& v) {
      out.rgb.assign(output_bytes(v), 0);
      return std::span(out.rgb);
    };
    const auto choose = [&](int width, int height) {
      out.width = width;
      const int h = rows == 0 ? height : rows;
      return view_of_image{{0, 0, width, h}, width, h, {0, 0, width, h}, false};
    };
    const auto bytes = std::as_bytes(std::span(file));
    const auto done = decoder_.decode(bytes, options, choose, place);
    out.warnings = decoder_.warnings();
    if (!done) out = {.error = done.error().what()};
    return out;
  }

  static std::string text_of(const std::vector<std::byte>& file) {
    return {reinterpret_cast<const char*>(file.data()), file.size()};
  }
  static std::string photo(int size) {
    return text_of(encode_jpeg(fake_image({.size = size}, 3, 1), size, size, 90));
  }
  static std::string png_of(int size) {
    return text_of(encode_png(fake_image({.size = size}, 3, 1), size, size));
  }
  // A PNG chunk eXIf that turns the image by a quarter.
  static std::string turns() {
    using namespace std::string_literals;
    return "\0\0\0\x1A"
           "eXIfMM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0\xD6gKi"s;
  }

  image_decoder decoder_;
};

// libpng looks at a checksum where the chunk ends, which crops above the last row never reach.
TEST_F(DamagedImages, PngsByTheirChecksumsInEveryView) {
  const std::string png = png_of(48);
  const std::size_t pixels = png.find("IDAT") + 4;
  const std::size_t end = png.find("IEND") - 8;
  int taken = 0;
  for (std::size_t at = pixels + 2; at < end; at += 7) {
    std::string damaged = png;
    damaged[at] ^= 0x10;
    for (const int rows : {1, 20, 0}) {
      EXPECT_EQ(found(damaged, {}, rows).error, "cannot decode the image: IDAT: CRC error") << at;
      const found_image kept = found(damaged, {.lenient = true}, rows);
      if (kept.width == 0) continue;
      EXPECT_GT(kept.warnings, 0) << at << " " << rows;
      ++taken;
    }
  }
  EXPECT_GT(taken, 10);
  std::string checksum = png;
  checksum[end] ^= 1;
  for (const int rows : {1, 20, 0}) {
    EXPECT_EQ(found(checksum, {}, rows).error, "cannot decode the image: IDAT: CRC error");
    EXPECT_EQ(found(checksum, {.lenient = true}, rows).warnings, 1);
    EXPECT_EQ(found(checksum, {.lenient = true}, rows).rgb, found(png, {}, rows).rgb);
    EXPECT_EQ(found(png, {}, rows).warnings, 0);
  }
}

// A chunk behind the pixels may turn them: a PNG that is cut there is not the image.
TEST_F(DamagedImages, PngsAreCutWhereTheirLastChunkIsMissing) {
  std::string png = png_of(16);
  const std::size_t last = png.find("IEND") - 4;
  const std::string exif = turns();
  png.insert(last, exif);
  const found_image whole = found(png);
  EXPECT_NE(whole.rgb, found(png, {.orient = false}).rgb);
  for (std::size_t size = 60; size <= last + exif.size() + 4; ++size) {
    const std::string cut = png.substr(0, size);
    for (const int rows : {1, 0}) {
      EXPECT_EQ(found(cut, {}, rows).width, 0) << size;
      EXPECT_EQ(found(cut, {.lenient = true}, rows).width, 0) << size;
      const found_image filled = found(cut, {.fill_truncated = true}, rows);
      EXPECT_EQ(filled.width, 16) << size;
      EXPECT_EQ(filled.warnings, 1) << size;
    }
  }
  // By its name the last chunk is known, and it has nothing else.
  for (std::size_t size = last + exif.size() + 5; size <= png.size(); ++size) {
    EXPECT_EQ(found(png.substr(0, size)).rgb, whole.rgb) << size;
  }
}

TEST_F(DamagedImages, PngsByTheChecksumOfTheirOrientation) {
  const std::string png = png_of(16);
  for (const char* before : {"IDAT", "IEND"}) {
    std::string damaged = png;
    damaged.insert(damaged.find(before) - 4, turns());
    damaged[damaged.find("eXIf") + 23] ^= 1;
    EXPECT_EQ(found(damaged).error, "cannot decode the image: eXIf: CRC error") << before;
    EXPECT_EQ(found(damaged, {.lenient = true}).warnings, 1) << before;
  }
}

}  // namespace
}  // namespace millrace
