#include <gtest/gtest.h>

#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/pixels/view.h"
#include "pipeline/samples/label.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

random_stream numbers(std::uint64_t i) {
  return {9, purpose::augment, 0, i};
}

TEST(RandomResizedCrop, StaysWithinTheImageAndItsRanges) {
  double area = 0;
  constexpr int draws = 20'000;
  for (int i = 0; i < draws; ++i) {
    const auto v = random_resized_crop(500, 375, 224, {}, numbers(static_cast<std::uint64_t>(i)));
    EXPECT_GE(v.crop.x, 0);
    EXPECT_GE(v.crop.y, 0);
    EXPECT_LE(v.crop.x + v.crop.width, 500);
    EXPECT_LE(v.crop.y + v.crop.height, 375);
    const double part = v.crop.width * v.crop.height / (500.0 * 375);
    EXPECT_GT(part, 0.078);
    area += part;
  }
  // The mean of 60,000 draws of torchvision 0.26's get_params for this shape.
  EXPECT_NEAR(area / draws, 0.4329, 0.005);
}

TEST(RandomResizedCrop, FallsBackToTheCentreWhereNoTryFits) {
  const auto v = random_resized_crop(1000, 10, 224, {.least_area = 0.9}, numbers(1));
  EXPECT_EQ(v.crop, (pixel_box{493, 0, 13, 10}));
}

TEST(RandomResizedCrop, FlipsHalfOfTheTime) {
  int flips = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    flips += random_resized_crop(50, 50, 32, {}, numbers(i)).flip ? 1 : 0;
  }
  EXPECT_NEAR(flips, 5000, 250);
}

TEST(ResizeCenterCrop, AsTorchvisionRounds) {
  const auto v = resize_center_crop(500, 375, 256, 224);
  EXPECT_EQ(v.scaled_width, 341);  // int(256 * 500 / 375)
  EXPECT_EQ(v.scaled_height, 256);
  EXPECT_EQ(v.window, (pixel_box{58, 16, 224, 224}));  // round(58.5) is 58
}

class Jpeg : public ::testing::Test {
 protected:
  result<std::vector<std::uint8_t>> decode(std::span<const std::byte> file,
                                           const std::function<view_of_image(int, int)>& choose,
                                           const image_options& options = {}) {
    std::vector<std::uint8_t> out;
    const auto room = [&](const view_of_image& v) {
      out.resize(static_cast<std::size_t>(v.window.width * v.window.height) * 3);
      return std::span(out);
    };
    if (auto done = decoder_.decode(file, options, choose, room); !done) return done.error();
    return out;
  }
  // The crop alone, unscaled.
  static view_of_image plain(pixel_box crop) {
    return {crop, crop.width, crop.height, {0, 0, crop.width, crop.height}, false};
  }
  static view_of_image whole(int w, int h) { return plain({0, 0, w, h}); }

  jpeg_decoder decoder_;
  std::vector<std::byte> file_ = encode_jpeg(fake_image({.size = 101}, 3, 1), 101, 101, 95);
};

TEST_F(Jpeg, ARegionIsThatPartOfTheWholeImage) {
  const auto full = decode(file_, whole).value();
  for (std::uint64_t i = 0; i < 200; ++i) {
    const pixel_box box = random_resized_crop(101, 101, 32, {}, numbers(i)).crop;
    const auto part = decode(file_, [&](int, int) { return plain(box); }).value();
    for (int y = 0; y < box.height; ++y) {
      const auto row = static_cast<std::size_t>(box.width) * 3;
      const auto* from =
          full.data() +
          (static_cast<std::size_t>(box.y + y) * 101 + static_cast<std::size_t>(box.x)) * 3;
      ASSERT_TRUE(std::equal(from, from + row, part.data() + static_cast<std::size_t>(y) * row))
          << "box " << box.x << "," << box.y << " " << box.width << "x" << box.height << " row "
          << y;
    }
  }
}

TEST_F(Jpeg, FlipMirrors) {
  const auto plain_one = decode(file_, whole).value();
  const auto mirrored = decode(file_, [](int w, int h) {
                          auto v = whole(w, h);
                          v.flip = true;
                          return v;
                        }).value();
  for (std::size_t y = 0; y < 101; ++y) {
    for (std::size_t x = 0; x < 101; ++x) {
      ASSERT_EQ(plain_one[(y * 101 + x) * 3], mirrored[(y * 101 + 100 - x) * 3]);
    }
  }
}

TEST_F(Jpeg, TheDecoderServesTheNextImageAfterABadOne) {
  for (std::size_t size = 0; size < file_.size(); size += 97) {
    const auto out = decode(std::span(file_).first(size), whole);
    ASSERT_FALSE(out) << size;
    EXPECT_EQ(out.error().kind(), errc::bad_image);
    EXPECT_TRUE(out.error().is_skippable());
    ASSERT_TRUE(decode(file_, whole));
  }
  EXPECT_EQ(decode(std::as_bytes(std::span("no image at all")), whole).error().kind(),
            errc::bad_image);
}

// libjpeg itself would use the tables of the previous image. A file without Huffman tables uses the
// standard's examples (as in Motion JPEG).
TEST_F(Jpeg, AFileWithoutTablesIsTheSameWhateverWasDecodedBefore) {
  const auto other = with_restart_runs(file_, 4).value();  // tables of its own
  for (const unsigned marker : {0xC4U, 0xDBU}) {
    std::vector<std::byte> file(file_.begin(), file_.begin() + 2);
    std::size_t at = 2;
    for (bool is_scan = false; !is_scan;) {
      const auto code = std::to_integer<unsigned>(file_[at + 1]);
      const auto size = 2 + std::to_integer<std::size_t>(file_[at + 2]) * 256 +
                        std::to_integer<std::size_t>(file_[at + 3]);
      const auto from = file_.begin() + static_cast<std::ptrdiff_t>(at);
      if (code != marker) file.insert(file.end(), from, from + static_cast<std::ptrdiff_t>(size));
      is_scan = code == 0xDA;
      at += size;
    }
    file.insert(file.end(), file_.begin() + static_cast<std::ptrdiff_t>(at), file_.end());
    const auto first = decode(file, whole);
    ASSERT_TRUE(decode(other, whole));
    const auto later = decode(file, whole);
    ASSERT_EQ(first.has_value(), later.has_value());
    if (first) EXPECT_EQ(*first, *later);
    if (!first) EXPECT_EQ(first.error().message(), later.error().message());
    EXPECT_EQ(first.has_value(), marker == 0xC4U);
  }
}

TEST_F(Jpeg, LimitsPixels) {
  EXPECT_EQ(decode(file_, whole, {.limits = {.max_pixels = 10'200}}).error().kind(),
            errc::too_large);
  EXPECT_TRUE(decode(file_, whole, {.limits = {.max_pixels = 10'201}}));
}

sample with(std::string extension, std::string_view content) {
  sample s;
  s.key = "k";
  s.fields.push_back({std::move(extension), bytes::unowned(content)});
  return s;
}

TEST(Label, Integers) {
  EXPECT_EQ(label_of(with("cls", " 12\n"), "auto").value(), 12);
  EXPECT_EQ(label_of(with("id", "-3"), "auto").value(), -3);
  EXPECT_EQ(label_of(with("y", "+7"), "y").value(), 7);
  EXPECT_EQ(label_of(with("jpg", "x"), "none").value(), -1);
  for (const char* wrong : {"1.5", "", " ", "cat", "1 2", "99999999999999999999", "+-1"}) {
    const auto label = label_of(with("cls", wrong), "auto");
    ASSERT_FALSE(label) << wrong;
    EXPECT_EQ(label.error().kind(), errc::bad_label);
    EXPECT_EQ(label.error().sample_key(), "k");
  }
  EXPECT_EQ(label_of(with("jpg", "x"), "auto").error().kind(), errc::missing_field);
}

TEST(Label, WithANumberOfClassesOthersAreRefusedByName) {
  sample s = with("cls", "5");
  s.url = std::make_shared<const std::string>("memory:a.tar");
  s.where.offset = 1024;
  EXPECT_EQ(label_of(s, "auto", 6).value(), 5);
  EXPECT_EQ(label_of(s, "auto", 0).value(), 5);
  const error beyond = label_of(s, "auto", 5).error();
  EXPECT_EQ(beyond.kind(), errc::bad_label);
  EXPECT_TRUE(beyond.is_skippable());
  EXPECT_TRUE(beyond.message().starts_with(
      "bad_label: the label 5 is not one of 5 classes (0 to 4), at memory:a.tar byte 1024, key k"))
      << beyond.message();
  for (const char* outside : {"-1", "-100", "99999999999", "-9223372036854775808"}) {
    EXPECT_EQ(label_of(with("cls", outside), "cls", 5).error().kind(), errc::bad_label) << outside;
    EXPECT_EQ(
        label_of(with("json", std::string("{\"a\":") + outside + "}"), "json:a", 5).error().kind(),
        errc::bad_label)
        << outside;
  }
  EXPECT_THROW(checked({.label = "none", .classes = 5}), failure);
  for (const char* wrong : {"", "JPG", "jpg,png", "jpg png", "jpg;", "jpg;;png"}) {
    EXPECT_THROW(checked({.images = wrong}), failure) << wrong;
  }
  for (const char* wrong : {"", "CLS", "json:"}) {
    EXPECT_THROW(checked({.label = wrong}), failure) << wrong;
  }
  for (const char* right :
       {"cls", ".cls", "json:A.B", "seg.label", "class, fine", "auto", "none"}) {
    EXPECT_NO_THROW(checked({.images = "seg.png;npy;.jpg;left eye.jpg", .label = right})) << right;
  }
  EXPECT_THROW(checked({.classes = -1}), failure);
}

TEST(Label, FieldsOfJson) {
  const sample s = with("json", R"({"label": 4, "a": {"b": 5}, "name": "x", "f": 1.5,
                                   "large": 18446744073709551615})");
  EXPECT_EQ(label_of(s, "json:label").value(), 4);
  EXPECT_EQ(label_of(s, "json:a.b").value(), 5);
  for (const char* wrong :
       {"json:name", "json:none", "json:f", "json:label.x", "json:", "json:large"}) {
    EXPECT_EQ(label_of(s, wrong).error().kind(), errc::bad_label) << wrong;
  }
  EXPECT_EQ(label_of(with("json", "{"), "json:a").error().kind(), errc::bad_label);
  EXPECT_EQ(label_of(with("cls", "1"), "json:a").error().kind(), errc::missing_field);
}

}  // namespace
}  // namespace millrace
