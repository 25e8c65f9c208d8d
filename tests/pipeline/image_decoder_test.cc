#include "pipeline/images/image_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/words.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/png.h"
#include "pipeline/images/sample_decoder.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using namespace std::string_literals;

constexpr int image_side = 16;

std::string text_of(const std::vector<std::byte>& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

// An image of each format that is decoded, by its name.
std::map<std::string_view, std::string> images() {
  const auto rgb = fake_image({.size = image_side}, 3, 1);
  const std::string pixels(rgb.begin(), rgb.end());
  return {{"JPEG", text_of(encode_jpeg(rgb, image_side, image_side, 90))},
          {"PNG", text_of(encode_png(rgb, image_side, image_side))},
          {"WebP",  // lossless, of one pixel
           "RIFF\x1A\0\0\0WEBPVP8L\x0D\0\0\0\x2F\0\0\0\x10\x07\x10\x11\x11\x88\x88\xFE\x07\0"s},
          {"PGM, PPM", "P6 16 16 255\n" + pixels},
          {".npy", "\x93NUMPY\x01\0\x46\0"s +
                       "{'descr': '|u1', 'fortran_order': False, 'shape': (16, 16, 3), }     \n" +
                       pixels}};
}

// The error of decoding a file as a sample's field, with the options' defaults; "" if there is
// none.
std::string error_of(const std::string& extension, const std::string& file) {
  static const decode_options options = checked({.train = false, .label = "none"});
  sample s;
  s.key = "k";
  s.fields.push_back({extension, bytes::unowned(file)});
  std::vector<std::uint8_t> pixels(std::size_t{224} * 224 * 3);
  sample_decoder decoder;
  const auto decoded = decoder.decode(s, options, pixels.data());
  return decoded ? "" : decoded.error().what();
}

TEST(ImageDecoder, DecodesEveryFormatUnderEachOfItsExtensionsByDefault) {
  EXPECT_EQ(decoded_extensions(), "jpg;jpeg;png;webp;ppm;pgm;pnm");
  EXPECT_EQ(decode_options().images, decoded_extensions());
  const auto known = images();
  std::vector<std::string> extensions;
  for (const image_format& format : image_formats()) {
    if (!format.is_decoded) continue;
    ASSERT_TRUE(known.contains(format.name)) << "add an image of " << format.name << " above";
    const std::string& file = known.at(format.name);
    EXPECT_EQ(error_of("jpg", file), "") << format.name;  // whatever its name
    for (const std::string& extension : split(format.extensions, ';')) {
      EXPECT_EQ(error_of(extension, file), "") << format.name << " as " << extension;
      EXPECT_TRUE(is_image_extension(extension)) << extension;
      extensions.push_back(extension);
    }
  }
  EXPECT_EQ(extensions, split(decoded_extensions(), ';'));
}

// A format whose start is that of an earlier row would have the earlier row's name.
TEST(ImageDecoder, RefusesEveryOtherFormatByName) {
  std::size_t refused = 0;
  for (const image_format& format : image_formats()) {
    if (format.is_decoded) continue;
    for (const std::string_view start : format.starts) {
      if (start.empty()) continue;
      std::string file(start);
      std::ranges::replace(file, '.', 'x');
      EXPECT_EQ(error_of("jpg", file + std::string(100, '\0')),
                "the image is " + std::string(format.name) +
                    "; JPEG, PNG, WebP, PGM, PPM and .npy are decoded: convert it, or have it "
                    "skipped");
      ++refused;
    }
    for (const std::string& extension : split(format.extensions, ';')) {
      EXPECT_TRUE(is_image_extension(extension)) << extension;
      EXPECT_TRUE(error_of(extension, "x").ends_with(", but a " + extension));
    }
  }
  EXPECT_GE(refused, 26U);
}

TEST(ImageDecoder, ExtensionsOfImagesAreThoseOfFormatsThatAreRefusedToo) {
  for (const char* known : {"jpg", "gif", "bmp", "tif", "tiff", "jp2", "jxl", "avif", "heic"}) {
    EXPECT_TRUE(is_image_extension(known)) << known;
  }
  for (const char* other : {"", ";", "jpg;jpeg", "JPG", "jp", "npy", "cls", "*"}) {
    EXPECT_FALSE(is_image_extension(other)) << other;
  }
}

}  // namespace
}  // namespace millrace
