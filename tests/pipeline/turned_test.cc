// An image oriented by EXIF has the pixels of the oriented image, whatever the filter and the view.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "engine/base/random.h"
#include "pipeline/codecs/png.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/images/sample_decoder.h"

namespace millrace {
namespace {

using pixels = std::vector<std::uint8_t>;
using file_bytes = std::vector<std::byte>;

struct picture {
  int width = 0;
  int height = 0;
  pixels rgb;

  const std::uint8_t* at(int x, int y) const {
    return rgb.data() + (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                         static_cast<std::size_t>(x)) *
                            3;
  }
};

std::string big_endian(std::uint32_t n) {
  std::string out;
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(n >> shift & 255);
  return out;
}

std::uint32_t crc32(const std::string& text) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

std::string chunk(const std::string& name, const std::string& content) {
  return big_endian(static_cast<std::uint32_t>(content.size())) + name + content +
         big_endian(crc32(name + content));
}

std::string orientation(int number) {
  return chunk("eXIf", std::string("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 19) +
                           static_cast<char>(number) + std::string(6, '\0'));
}

// A PNG with this text before the first chunk of this name.
file_bytes with_text(const file_bytes& png, const std::string& text, std::string_view name) {
  const std::string_view all(reinterpret_cast<const char*>(png.data()), png.size());
  const auto at = static_cast<std::ptrdiff_t>(all.find(name)) - 4;
  file_bytes out(png.begin(), png.begin() + at);
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
  out.insert(out.end(), png.begin() + at, png.end());
  return out;
}

// From EXIF's definition of each number.
picture turned(const picture& stored, int number) {
  const int w = stored.width;
  const int h = stored.height;
  picture out{number >= 5 ? h : w, number >= 5 ? w : h, {}};
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const std::uint8_t* from = number == 1   ? stored.at(x, y)
                                 : number == 2 ? stored.at(w - 1 - x, y)
                                 : number == 3 ? stored.at(w - 1 - x, h - 1 - y)
                                 : number == 4 ? stored.at(x, h - 1 - y)
                                 : number == 5 ? stored.at(y, x)
                                 : number == 6 ? stored.at(y, h - 1 - x)
                                 : number == 7 ? stored.at(w - 1 - y, h - 1 - x)
                                               : stored.at(w - 1 - y, x);
      out.rgb.insert(out.rgb.end(), from, from + 3);
    }
  }
  return out;
}

class Turned : public ::testing::Test {
 protected:
  int below(int n) { return static_cast<int>(random_.below(static_cast<std::uint32_t>(n))); }
  int between(int least, int most) { return least + below(most - least + 1); }

  picture noise(int width, int height) {
    picture out{width, height, pixels(static_cast<std::size_t>(width * height) * 3)};
    for (auto& b : out.rgb) b = static_cast<std::uint8_t>(below(256));
    return out;
  }
  // Often by a factor of 1 or 1/2, where pixel centres coincide.
  view_of_image random_view(int width, int height) {
    view_of_image v;
    v.crop = {0, 0, between(1, width), between(1, height)};
    v.crop.x = below(width - v.crop.width + 1);
    v.crop.y = below(height - v.crop.height + 1);
    v.scaled_width = below(2) == 0 ? std::max(1, v.crop.width / 2) : between(1, 60);
    v.scaled_height = below(2) == 0 ? std::max(1, v.crop.height * 2 / 3) : between(1, 60);
    v.window.width = between(1, v.scaled_width);
    v.window.height = between(1, v.scaled_height);
    v.window.x = below(v.scaled_width - v.window.width + 1);
    v.window.y = below(v.scaled_height - v.window.height + 1);
    v.flip = below(2) == 0;
    return v;
  }
  pixels decoded(std::span<const std::byte> file, const image_options& options,
                 const view_of_image& view) {
    pixels out;
    const auto place = [&](const view_of_image& v) {
      out.assign(output_bytes(v), 0);
      return std::span(out);
    };
    const auto choose = [&](int width, int height) {
      const bool fits =
          view.crop.x + view.crop.width <= width && view.crop.y + view.crop.height <= height;
      EXPECT_TRUE(fits) << width << " x " << height;
      return fits ? view : whole_image(width, height);
    };
    decoder_.decode(file, options, choose, place).value();
    return out;
  }

  image_decoder decoder_;
  random_stream random_{5, purpose::augment, 0, 0};
};

TEST_F(Turned, PixelsAreThoseOfTheTurnedImage) {
  for (int round = 0; round < 40; ++round) {
    const picture stored = noise(between(5, 90), between(5, 90));
    const file_bytes png = encode_png(stored.rgb, stored.width, stored.height);
    for (int number = 1; number <= 8; ++number) {
      const file_bytes file = with_text(png, orientation(number), "IDAT");
      const picture whole = turned(stored, number);
      const view_of_image view = random_view(whole.width, whole.height);
      for (const auto filter : {resample_filter::box, resample_filter::bilinear,
                                resample_filter::bicubic, resample_filter::lanczos}) {
        SCOPED_TRACE(fmt::format("round {}, orientation {}, filter {}", round, number,
                                 static_cast<int>(filter)));
        const image_options bare{
            .filter = filter, .raw_width = whole.width, .raw_height = whole.height};
        const pixels expected = decoded(std::as_bytes(std::span(whole.rgb)), bare, view);
        const pixels found = decoded(file, {.filter = filter}, view);
        ASSERT_EQ(found.size(), expected.size());
        int most = 0;
        for (std::size_t i = 0; i < found.size(); ++i) {
          most = std::max(most, std::abs(found[i] - expected[i]));
        }
        // If rows and columns are swapped, so are the passes of the filter.
        const bool overshoots =
            filter == resample_filter::bicubic || filter == resample_filter::lanczos;
        ASSERT_LE(most, number < 5 ? 0 : overshoots ? 60 : 1);
      }
    }
  }
}

TEST_F(Turned, PngsByAChunkAnywhere) {
  const picture stored = noise(4, 7);
  const file_bytes png = encode_png(stored.rgb, stored.width, stored.height);
  const auto whole_of = [&](const file_bytes& file, bool orient) {
    return decoded(file, {.orient = orient}, whole_image(orient ? 7 : 4, orient ? 4 : 7));
  };
  const pixels expected = turned(stored, 6).rgb;
  for (const char* before : {"IDAT", "IEND"}) {
    const file_bytes file = with_text(png, orientation(6), before);
    EXPECT_EQ(whole_of(file, true), expected) << before;
    EXPECT_EQ(whole_of(file, false), stored.rgb) << before;
    // The first one counts.
    EXPECT_EQ(whole_of(with_text(file, orientation(3), "IEND"), true), expected) << before;
  }
}

}  // namespace
}  // namespace millrace
