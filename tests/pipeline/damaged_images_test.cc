// A damaged image is an error in every view, and its preview is never taken for it.
#include <gtest/gtest.h>
#include <webp/encode.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "pipeline/codecs/png.h"
#include "pipeline/images/image_decoder.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

class DamagedImages : public ::testing::Test {
 protected:
  struct found_image {
    int width = 0;  // 0: an error
    int warnings = 0;
    std::vector<std::uint8_t> rgb;
    std::string error;
  };

  // Only its topmost rows; 0: all of them.
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
  static std::string webp_of(int size, bool lossless) {
    const auto rgb = fake_image({.size = size}, 3, 1);
    std::uint8_t* made = nullptr;
    const std::size_t bytes = lossless
                                  ? WebPEncodeLosslessRGB(rgb.data(), size, size, size * 3, &made)
                                  : WebPEncodeRGB(rgb.data(), size, size, size * 3, 80, &made);
    std::string out(reinterpret_cast<const char*>(made), bytes);
    WebPFree(made);
    return out;
  }
  // EXIF that rotates the image by 90 degrees.
  static std::string quarter() {
    using namespace std::string_literals;
    return "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"s;
  }
  // The same as a PNG chunk.
  static std::string turns() {
    using namespace std::string_literals;
    return "\0\0\0\x1A"s + "eXIf" + quarter() + "\xD6gKi";
  }
  // The same as a JPEG segment.
  static std::string turning_segment() {
    using namespace std::string_literals;
    return "\xFF\xE1\0\x22"s + "Exif\0\0"s + quarter();
  }
  // A WebP with EXIF that rotates it, before or after its pixels.
  static std::string turned_webp(int size, bool lossless, bool in_front) {
    using namespace std::string_literals;
    const std::string image = webp_of(size, lossless).substr(12);
    const std::string side = static_cast<char>(size - 1) + "\0\0"s;
    const std::string header = "VP8X\x0A\0\0\0\x08\0\0\0"s + side + side;
    const std::string exif = "EXIF\x1A\0\0\0"s + quarter();
    const std::string chunks = "WEBP" + header + (in_front ? exif + image : image + exif);
    const std::size_t n = chunks.size();
    return "RIFF"s + static_cast<char>(n & 255) + static_cast<char>(n >> 8) + "\0\0"s + chunks;
  }

  image_decoder decoder_;
};

// libpng verifies a checksum at the end of a chunk, which crops above the last row never reach.
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

// A chunk after the pixels may rotate them: a PNG cut there is not the image.
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
  // The last chunk is recognised by its name; it has no content.
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

// With a damaged name, a chunk is unknown, and the image is not rotated.
TEST_F(DamagedImages, PngsByTheNamesOfTheirChunks) {
  std::string png = png_of(16);
  png.insert(png.find("IEND") - 4, turns());
  ASSERT_NE(found(png).rgb, found(png, {.orient = false}).rgb);
  for (const char* name : {"eXIf", "IDAT"}) {
    for (std::size_t i = 0; i < 4; ++i) {
      for (const int by : {0x01, 0x20, 0x65}) {
        std::string damaged = png;
        damaged[damaged.find(name) + i] ^= static_cast<char>(by);
        EXPECT_EQ(found(damaged).width, 0) << name << " " << i << " " << by;
        EXPECT_EQ(found(damaged, {}, 1).width, 0) << name << " " << i << " " << by;
      }
    }
  }
}

// What follows the pixels of a WebP does not belong to them, even if the pixels are damaged and
// need more bytes than they have.
TEST_F(DamagedImages, WebpsByTheBytesOfTheirPixels) {
  using namespace std::string_literals;
  for (const bool lossless : {false, true}) {
    const std::string webp = webp_of(32, lossless);
    const auto with_more = [](std::string file) {
      file += "EXIF\x40\0\0\0"s + std::string(64, '\x55');
      file[4] = static_cast<char>((file.size() - 8) & 255);
      file[5] = static_cast<char>((file.size() - 8) >> 8);
      return file;
    };
    ASSERT_EQ(found(with_more(webp)).rgb, found(webp).rgb);
    int errors = 0;
    for (std::size_t at = 20; at < webp.size(); ++at) {
      for (const int by : {0x01, 0x10, 0x80, 0xFF}) {
        std::string damaged = webp;
        damaged[at] ^= static_cast<char>(by);
        const found_image alone = found(damaged);
        const found_image followed = found(with_more(damaged));
        EXPECT_EQ(alone.error.empty(), followed.error.empty()) << at << " " << by;
        EXPECT_EQ(alone.rgb, followed.rgb) << at << " " << by;
        errors += alone.error.empty() ? 0 : 1;
      }
    }
    EXPECT_GT(errors, 0);
  }
}

TEST_F(DamagedImages, WebpsByTheirChunks) {
  for (const bool lossless : {false, true}) {
    const found_image turned = found(turned_webp(32, lossless, false));
    EXPECT_NE(turned.rgb, found(webp_of(32, lossless)).rgb);
    for (const bool in_front : {false, true}) {
      const std::string file = turned_webp(32, lossless, in_front);
      EXPECT_EQ(found(file).rgb, turned.rgb) << in_front;
      EXPECT_EQ(found(file).warnings, 0);
      // Each bit of names, sizes and the header.
      const std::size_t pixels = file.find(lossless ? "VP8L" : "VP8 ");
      const std::size_t exif = file.find("EXIF");
      for (std::size_t at = 0; at < file.size(); ++at) {
        const bool is_of_container = at < 30 || at - pixels < 8 || at - exif < 8;
        for (int bit = 0; bit < 8 && is_of_container; ++bit) {
          std::string damaged = file;
          damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
          const found_image now = found(damaged);
          EXPECT_TRUE(now.width == 0 || now.rgb == turned.rgb) << at << " " << bit;
        }
      }
    }
  }
  // No chunk has pixels.
  const std::string bare = webp_of(32, true).erase(12, 8);
  for (const bool fill : {false, true}) {
    EXPECT_EQ(found(bare, {.fill_truncated = fill}).width, 0);
  }
}

// A length too small to include itself is skipped, but nothing after it is.
TEST_F(DamagedImages, JpegsByLengthsOfNothing) {
  const std::string plain = photo(16);
  const std::size_t behind = 2 + 18;  // SOI and APP0, as libjpeg writes them
  ASSERT_EQ(plain.substr(3, 3), std::string("\xE0\0\x10", 3));
  std::string file = plain.substr(0, behind) + turning_segment() + plain.substr(behind);
  const found_image turned = found(file);
  ASSERT_NE(turned.rgb, found(plain).rgb);
  for (const char length : {'\0', '\1'}) {
    file[5] = length;
    EXPECT_EQ(found(file).rgb, turned.rgb);
  }
}

// An orientation is applied however many segments precede it.
TEST_F(DamagedImages, JpegsOfManySegmentsAreNone) {
  using namespace std::string_literals;
  const std::string plain = photo(16);
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "\xFF\xDD\0\x04\0\0"s;
  const std::string file = plain.substr(0, 20) + many + turning_segment() + plain.substr(20);
  EXPECT_EQ(found(file).rgb, found(plain.substr(0, 20) + turning_segment() + plain.substr(20)).rgb);
}

// A download into a file allocated at its full size.
TEST_F(DamagedImages, JpegsWhoseEndIsZeros) {
  const std::string whole = photo(64);
  for (std::size_t there = whole.size() / 2; there < whole.size() - 40; there += 3) {
    const std::string file = whole.substr(0, there) + std::string(whole.size() - there, '\0');
    for (const int rows : {1, 0}) {
      EXPECT_EQ(found(file, {}, rows).width, 0) << there;
      EXPECT_GT(found(file, {.lenient = true, .fill_truncated = true}, rows).warnings, 0) << there;
    }
  }
}

// Surplus bytes in a run are missing from another one: a byte was damaged.
TEST_F(DamagedImages, JpegsByBytesBehindTheirRuns) {
  const std::string plain = photo(64);
  const auto rewritten = with_restart_runs(std::as_bytes(std::span(plain)), 2, {});
  ASSERT_TRUE(rewritten);
  const std::string file = text_of(*rewritten);
  ASSERT_EQ(found(file).rgb, found(plain).rgb);
  std::size_t runs = 0;
  for (std::size_t at = 0; (at = file.find('\xFF', at)) != file.npos; ++at) {
    const auto marker = static_cast<unsigned char>(file[at + 1]);
    if (marker < 0xD0 || marker > 0xD7) continue;
    ++runs;
    std::string damaged = file;
    damaged.insert(at, "\x12\x34");
    EXPECT_NE(found(damaged).error.find("2 extraneous bytes"), std::string::npos) << runs;
    EXPECT_EQ(found(damaged, {.lenient = true}).warnings, 1) << runs;
    EXPECT_EQ(found(damaged, {.lenient = true}).rgb, found(plain).rgb) << runs;
    std::string filled_up = file;
    filled_up.insert(at, "\xFF\0", 2);
    EXPECT_EQ(found(filled_up).rgb, found(plain).rgb) << runs;
  }
  EXPECT_EQ(runs, 7);
}

// A JPEG of 64 x 64 with a preview of 16 x 16 in its EXIF.
std::string with_preview(const std::string& image, const std::string& preview) {
  using namespace std::string_literals;
  const std::string exif = "Exif\0\0II*\0\x08\0\0\0\0\0\x0E\0\0\0\x02\0"s +
                           std::string(24, '\x01') + std::string(4, '\0') + preview;
  const std::size_t length = exif.size() + 2;
  const std::string segment =
      "\xFF\xE1"s + static_cast<char>(length >> 8) + static_cast<char>(length & 255) + exif;
  return image.substr(0, 2) + segment + image.substr(2);
}

TEST_F(DamagedImages, AreNotReplacedByTheirPreviews) {
  const std::string file = with_preview(photo(64), photo(16));
  const std::size_t preview = file.find("\xFF\xD8\xFF", 3);
  ASSERT_EQ(found(file).width, 64);
  const auto expect_no_preview = [&](const std::string& damaged, const std::string& what) {
    for (const bool lenient : {false, true}) {
      const image_options options{.lenient = lenient, .fill_truncated = lenient};
      EXPECT_NE(found(damaged, options).width, 16) << what << " " << lenient;
    }
  };
  for (std::size_t n = 1; n < preview; ++n) {
    const std::string what = std::to_string(n) + " of " + std::to_string(preview);
    for (const char by : {'\0', '\xFF', ' '}) {
      expect_no_preview(std::string(n, by) + file.substr(n), what + " wiped");
    }
    expect_no_preview("\xFF\xD8" + std::string(n, '\0') + file.substr(2 + n), what + " behind SOI");
    expect_no_preview(file.substr(n), what + " lost");
  }
  expect_no_preview("\0" + file.substr(1), "first");
  for (std::size_t end = preview; end < preview + 14; ++end) {
    std::string damaged = file;
    damaged.replace(4, end - 4, std::string(end - 4, '\0'));
    expect_no_preview(damaged, "zeros to " + std::to_string(end));
  }
  // If its length is damaged, the segment ends within the preview.
  for (std::size_t length = preview - 1; length < preview + 14; ++length) {
    std::string damaged = file;
    damaged[4] = static_cast<char>(length >> 8);
    damaged[5] = static_cast<char>(length & 255);
    expect_no_preview(damaged, "length " + std::to_string(length));
  }
  // A preview of another format.
  std::string png = png_of(32);
  png.insert(png.find("IDAT") - 4, file.substr(6, file.size() - 6));
  png[1] = 'Q';
  expect_no_preview(png, "PNG");
}

// White space printed by a script before the image; and bytes that libjpeg skips between segments,
// if no other image follows.
TEST_F(DamagedImages, AreNotThoseWithBlanksInFront) {
  const std::string file = photo(16);
  for (const std::string blanks : {"\n", "\r\n\r\n", " \t", "\xEF\xBB\xBF", "\xEF\xBB\xBF\n"}) {
    EXPECT_EQ(found(blanks + file).rgb, found(file).rgb);
    EXPECT_EQ(found(blanks + file).warnings, 0);
  }
  EXPECT_EQ(found("x" + file).width, 0);
  EXPECT_EQ(found("\n" + file.substr(3)).width, 0);
  EXPECT_EQ(found(file.substr(0, 2) + "junk" + file.substr(2)).rgb, found(file).rgb);
}

}  // namespace
}  // namespace millrace
