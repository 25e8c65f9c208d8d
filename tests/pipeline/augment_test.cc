#include "pipeline/images/augment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <thread>

#include "millrace/millrace.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/mixing.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using testing::tar_builder;
using testing::with_memory_store;

constexpr int side = 40;

// A picture with all pixels different, and different for each number.
std::string picture(int number) {
  std::string out = "P6 " + std::to_string(side) + " " + std::to_string(side) + " 255\n";
  for (int i = 0; i < side * side * 3; ++i) {
    out += static_cast<char>((i * 7 + i / side * 13 + number * 31) % 256);
  }
  return out;
}

std::string text_of(std::span<const std::byte> file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

class Images : public ::testing::Test {
 protected:
  Images() {
    tar_builder shard;
    for (int i = 0; i < samples; ++i) {
      const std::string key = "p" + std::to_string(100 + i);
      shard.file(key + ".ppm", picture(i)).file(key + ".cls", std::to_string(i));
    }
    store_->put("a", shard.end().str());
  }

  static plan<image> decoded(const decode_options& options, const shard_list_options& list = {}) {
    return shards({"memory:a"}, list) | untar() | group_by_key() | decode_jpeg(options);
  }
  // The images of one epoch.
  std::vector<std::vector<std::uint8_t>> pixels_of(const plan<host_batch>& p, int threads = 2) {
    engine eng(with_memory_store(store_, threads));
    auto data = eng.run(p);
    std::vector<std::vector<std::uint8_t>> out;
    for (const host_batch& b : data) {
      const std::size_t size = b.payload_bytes() / b.size();
      for (std::size_t i = 0; i < b.size(); ++i) {
        out.emplace_back(b.data() + i * size, b.data() + (i + 1) * size);
      }
    }
    return out;
  }

  static constexpr int samples = 12;
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
};

TEST_F(Images, WhatIsNotResizedComesAsItIs) {
  const auto all =
      pixels_of(decoded({.size = side, .train = false, .resize = side}, {.shuffle = false}) |
                batch({.size = 5}));
  ASSERT_EQ(all.size(), 12U);
  for (int i = 0; i < samples; ++i) {
    const std::string expected = picture(i).substr(std::string("P6 40 40 255\n").size());
    const auto& got = all[static_cast<std::size_t>(i)];
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), got.begin(), got.end(),
                   [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; }))
        << i;
  }
}

TEST_F(Images, AugmentationIsAFunctionOfSeedEpochAndPosition) {
  decode_options o{.size = 24, .seed = 5};
  o.augment.policy = augment_policy::trivialaugment;
  o.augment.jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  o.augment.gray = o.augment.solarize = o.augment.blur.probability = 0.3;
  o.augment.blur.size = 5;
  o.augment.erasing.probability = 0.5;
  const auto run = [&](int threads) { return pixels_of(decoded(o) | batch({.size = 5}), threads); };
  const auto once = run(1);
  EXPECT_EQ(once.size(), 12U);
  EXPECT_EQ(once, run(3));
  o.seed = 6;
  EXPECT_NE(once, run(1));
}

TEST_F(Images, SizesGrowByEpochAndNoBatchHasTwo) {
  const decode_options o{.size = 96, .growing = {.from = 32, .epochs = 2, .multiple = 32}};
  engine eng(with_memory_store(store_));
  auto data = eng.run(decoded(o, {.epochs = 3}) | batch({.size = 5}));
  for (const int size : {32, 64, 96}) {
    std::size_t images = 0;
    for (const host_batch& b : data) {
      EXPECT_EQ(b.height, size);
      images += b.size();
    }
    EXPECT_EQ(images, 12U);
  }
}

// Epochs of a given length join passes over the data, whose images have different sizes.
TEST_F(Images, ABatchIsCutWhereImagesGrow) {
  const decode_options o{.size = 64, .growing = {.from = 32, .epochs = 1, .multiple = 32}};
  engine eng(with_memory_store(store_));
  for (const bool drops : {false, true}) {
    auto data =
        eng.run(decoded(o, {.epochs = 2}) | epochs_of(24) | batch({.size = 5, .drop_last = drops}));
    std::vector<std::pair<int, std::size_t>> got;
    for (const host_batch& b : data) got.emplace_back(b.height, b.size());
    using expected = std::vector<std::pair<int, std::size_t>>;
    if (drops) {
      EXPECT_EQ(got, (expected{{32, 5}, {32, 5}, {64, 5}, {64, 5}}));
      EXPECT_EQ(data.counts().dropped, 4U);
    } else {
      EXPECT_EQ(got, (expected{{32, 5}, {32, 5}, {32, 2}, {64, 5}, {64, 5}, {64, 2}}));
    }
  }
}

TEST_F(Images, DamagedOnesAreSkippedOrKeptAndCounted) {
  const std::string whole = text_of(encode_jpeg(fake_image({.size = 60}, 3, 1), 60, 60, 90));
  tar_builder shard;
  shard.file("a.jpg", whole).file("a.cls", "1");
  shard.file("b.jpg", whole.substr(0, whole.size() / 2)).file("b.cls", "2");
  shard.file("c.jpg", whole).file("c.cls", "3");
  store_->put("a", shard.end().str());
  engine eng(with_memory_store(store_));
  decode_options o{.size = 32};
  auto strict = eng.run(decoded(o) | on_error(skip_errors()) | batch({.size = 2}));
  EXPECT_EQ(testing::keys_of_epoch(strict), (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(strict.counts().damaged, 0U);
  EXPECT_EQ(strict.counts().skipped.at(errc::bad_image), 1U);
  o.image.fill_truncated = true;
  auto filled = eng.run(decoded(o) | on_error(skip_errors()) | batch({.size = 2}));
  EXPECT_EQ(testing::keys_of_epoch(filled), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(filled.counts().damaged, 1U);
  EXPECT_EQ(filled.counts().summary(), "delivered 3, skipped 0, dropped 0, 1 damaged image");
}

// This share of the JPEGs is left to the device: their slots hold the files, with their views.
TEST_F(Images, AShareIsLeftEncoded) {
  constexpr int count = 200;
  tar_builder shard;
  std::vector<std::string> files;
  for (int i = 0; i < count; ++i) {
    const bool is_jpeg = i % 10 != 0;
    files.push_back(
        is_jpeg ? text_of(encode_jpeg(
                      fake_image({.size = 40}, i % 10, static_cast<std::uint64_t>(i)), 40, 40, 80))
                : picture(i));
    const std::string key = std::to_string(1000 + i);
    shard.file(key + (is_jpeg ? ".jpg" : ".ppm"), files.back()).file(key + ".cls", "1");
  }
  store_->put("a", shard.end().str());
  const decode_options all{.size = 48, .seed = 4};
  decode_options some = all;
  some.encoded_share = 0.4;
  engine eng(with_memory_store(store_));
  const shard_list_options in_order{.shuffle = false};
  auto plain = eng.run(decoded(all, in_order) | batch({.size = 50}));
  auto shared = eng.run(decoded(some, in_order) | batch({.size = 50}));
  std::size_t left = 0;
  for (int i = 0; i < count / 50; ++i) {
    const auto a = plain.next();
    const auto b = shared.next();
    ASSERT_TRUE(a && b);
    const std::size_t size = a->payload_bytes() / 50;
    std::map<std::size_t, encoded_image> encoded(b->encoded.begin(), b->encoded.end());
    for (std::size_t k = 0; k < 50; ++k) {
      const std::string& file = files[static_cast<std::size_t>(i) * 50 + k];
      const auto it = encoded.find(k);
      const std::string_view slot(reinterpret_cast<const char*>(b->data()) + k * size, size);
      if (it == encoded.end()) {
        EXPECT_TRUE(std::equal(slot.begin(), slot.end(),
                               reinterpret_cast<const char*>(a->data()) + k * size));
        continue;
      }
      ++left;
      EXPECT_EQ(slot.substr(0, it->second.bytes), file);
      // Decoded with that view, it equals the pool's result.
      std::vector<std::uint8_t> pixels(size);
      ASSERT_TRUE(jpeg_decoder().decode(
          std::as_bytes(std::span(file)), {}, [&](int, int) { return it->second.view; },
          [&](const view_of_image&) { return std::span(pixels); }));
      EXPECT_TRUE(std::equal(pixels.begin(), pixels.end(), a->data() + k * size));
    }
  }
  EXPECT_NEAR(static_cast<double>(left), 0.4 * 0.9 * count, 25);
}

// Whole images are cached: crops of them equal crops decoded from their files.
TEST_F(Images, KeptOnesGiveTheSamePixelsInEveryEpoch) {
  std::vector<decode_options> each(4, decode_options{.size = 24, .seed = 2});
  const std::size_t one = std::size_t{side} * side * 3;
  each[1].cache = cache_decoded({.bytes = samples * one});
  each[2].cache = cache_decoded({.bytes = 5 * one + 100});
  each[3].cache = cache_decoded({.bytes = samples * one, .folder = ::testing::TempDir()});
  std::vector<std::vector<std::uint8_t>> all;
  for (const decode_options& o : each) {
    engine eng(with_memory_store(store_));
    auto data = eng.run(decoded(o, {.epochs = 3}) | batch({.size = 6}));
    auto& pixels = all.emplace_back();
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (const host_batch& b : data) {
        pixels.insert(pixels.end(), b.data(), b.data() + b.payload_bytes());
      }
    }
    EXPECT_EQ(pixels, all.front());
  }
  EXPECT_EQ(each[1].cache->hits(), 2U * samples);
  EXPECT_EQ(each[2].cache->hits(), 2U * 5);
  EXPECT_EQ(each[3].cache->hits(), 2U * samples);
  const std::string summary = each[1].cache->summary();
  EXPECT_TRUE(summary.starts_with("12 decoded images in ")) << summary;
  EXPECT_TRUE(summary.ends_with(" KiB, 1.0 times their files; 0 more do not fit")) << summary;
}

// Several sizes, so that a small one may still fit where a large one does not.
TEST(DecodedCache, GivesEachThreadsPicturesRoomOfTheirOwn) {
  constexpr int threads = 4;
  constexpr int each = 200;
  constexpr std::array sides = {200, 24, 128, 64, 90, 32};
  const auto side_of = [&](int id) {
    return sides[static_cast<std::size_t>(id / 3) % sides.size()];
  };
  const auto bytes_of = [&](int id) {
    return static_cast<std::size_t>(side_of(id)) * static_cast<std::size_t>(side_of(id)) * 3;
  };
  const auto place_of = [](int id) { return decoded_cache::place{.offset = id, .bytes = 1}; };
  for (int round = 0; round < 20; ++round) {
    decoded_cache cache({.bytes = 1 << 20});
    std::vector<std::jthread> keeping;
    for (int t = 0; t < threads; ++t) {
      keeping.emplace_back([&, t] {
        for (int id = t; id < threads * each; id += threads) {
          const std::vector<std::byte> pixels(bytes_of(id), static_cast<std::byte>(id % 251));
          cache.add(place_of(id), {.rgb = pixels, .width = side_of(id), .height = side_of(id)});
        }
      });
    }
    keeping.clear();
    std::size_t kept = 0;
    std::vector<std::uint8_t> room;
    for (int id = 0; id < threads * each; ++id) {
      const auto found = cache.find(place_of(id), room);
      if (!found) continue;
      kept += found->rgb.size();
      ASSERT_TRUE(std::ranges::all_of(found->rgb, [id](std::byte b) {
        return b == static_cast<std::byte>(id % 251);
      })) << id;
    }
    EXPECT_LE(kept, std::size_t{1} << 20);
    EXPECT_GT(kept, std::size_t{1} << 19);
  }
}

TEST_F(Images, KeptOnesMayBeSmaller) {
  decode_options o{.size = 20, .train = false, .resize = 20};
  o.cache = cache_decoded({.bytes = 1 << 20, .resize = 20});
  engine eng(with_memory_store(store_));
  auto data = eng.run(decoded(o, {.epochs = 2}) | batch({.size = samples}));
  const auto first = data.next();
  EXPECT_FALSE(data.next());
  const auto second = data.next();
  EXPECT_EQ(first->keys.size(), 12U);
  EXPECT_EQ(o.cache->hits(), 12U);
  EXPECT_TRUE(o.cache->summary().starts_with("12 decoded images in 14.1 KiB"));
  EXPECT_THROW(cache_decoded({.bytes = std::size_t{1} << 60}), failure);
  EXPECT_THROW(cache_decoded({.bytes = 8}), failure);
  EXPECT_THROW(cache_decoded({.bytes = 1 << 20, .folder = "/no/such/folder"}), failure);
}

TEST_F(Images, OptionsThatCannotBeAreRefused) {
  for (const auto& change : std::vector<std::function<void(decode_options&)>>{
           [](auto& o) { o.size = 0; }, [](auto& o) { o.augment.gray = 1.5; },
           [](auto& o) { o.augment.jitter.hue = 0.6; }, [](auto& o) { o.augment.blur.size = 4; },
           [](auto& o) { o.augment.erasing.least_area = 2; },
           [](auto& o) { o.augment.randaugment_magnitude = 31; },
           [](auto& o) { o.growing.from = 32; }, [](auto& o) { o.image.raw_width = 3; }}) {
    decode_options o;
    change(o);
    EXPECT_THROW((void)decode_jpeg(o), failure);
  }
  EXPECT_THROW(mix_images({.mixup = -1}), failure);
}

// Whether one of many draws changes the image.
bool is_drawn(const augment_options& o) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto drawn = draw_steps(o, random_stream(1, purpose::colors, 0, i), 100, 80);
    const auto& [steps, blur_sigma, erased] = drawn;
    if (!steps.empty() || blur_sigma != 0 || erased) return true;
  }
  return false;
}

TEST(Augment, WhatIsOnIsDrawnAndNothingElse) {
  EXPECT_FALSE(changes_pixels({}));
  EXPECT_FALSE(is_drawn({}));
  for (const auto& change : std::vector<std::function<void(augment_options&)>>{
           [](auto& o) { o.policy = augment_policy::autoaugment; },
           [](auto& o) { o.policy = augment_policy::randaugment; },
           [](auto& o) { o.policy = augment_policy::trivialaugment; },
           [](auto& o) { o.jitter.brightness = 0.1; }, [](auto& o) { o.jitter.contrast = 0.1; },
           [](auto& o) { o.jitter.saturation = 0.1; }, [](auto& o) { o.jitter.hue = 0.1; },
           [](auto& o) { o.gray = 0.5; }, [](auto& o) { o.solarize = 0.5; },
           [](auto& o) { o.blur.probability = 0.5; },
           [](auto& o) { o.erasing.probability = 0.5; }}) {
    augment_options o;
    change(o);
    EXPECT_NO_THROW(check(o));
    EXPECT_TRUE(changes_pixels(o));
    EXPECT_TRUE(is_drawn(o));
  }
}

// The order is part of what a seed means; a jitter that is on takes one even if it is not done.
TEST(Augment, WhatIsOnTakesRandomNumbersInOrderAndWhatIsOffNone) {
  augment_options o;
  o.blur.probability = 0.5;
  for (const bool all : {false, true}) {
    if (all) o.gray = o.solarize = o.erasing.probability = 0.5;
    if (all) o.jitter = {.brightness = 0.1, .probability = 0};
    for (std::uint64_t i = 0; i < 20; ++i) {
      random_stream random(1, purpose::colors, 0, i);
      if (all) random.uniform();
      std::size_t steps = all && random.uniform() < 0.5 ? 1 : 0;
      steps += all && random.uniform() < 0.5 ? 1 : 0;
      const double sigma = random.uniform() < 0.5 ? random.uniform(0.1, 2) : 0;
      const auto drawn = draw_steps(o, random_stream(1, purpose::colors, 0, i), 100, 80);
      EXPECT_EQ(drawn.steps.size(), steps) << i;
      EXPECT_EQ(drawn.blur_sigma, sigma) << i;
      EXPECT_EQ(drawn.erased.has_value(), all && random.uniform() < 0.5) << i;
    }
  }
}

TEST(Augment, SharesOfChangesTurnThemOn) {
  augment_options o;
  for (const change_share& option : shares_of(o)) {
    EXPECT_EQ(*option.share, 0) << option.flag;
    *option.share = 0.5;
    EXPECT_NO_THROW(check(o)) << option.flag;
    EXPECT_TRUE(changes_pixels(o)) << option.flag;
    EXPECT_TRUE(is_drawn(o)) << option.flag;
    for (const double wrong : {-0.1, 1.1}) {
      *option.share = wrong;
      EXPECT_THROW(check(o), failure) << option.flag;
    }
    *option.share = 0;
  }
}

TEST(Augment, ErasedBoxesHaveTheRangesAsked) {
  augment_options o;
  o.erasing.probability = 0.25;
  int erased = 0;
  constexpr int draws = 4000;
  for (std::uint64_t i = 0; i < draws; ++i) {
    const auto drawn = draw_steps(o, random_stream(1, purpose::colors, 0, i), 100, 80);
    if (!drawn.erased) continue;
    ++erased;
    const pixel_box& b = *drawn.erased;
    EXPECT_GE(std::min(b.x, b.y), 0);
    EXPECT_LE(b.x + b.width, 100);
    EXPECT_LE(b.y + b.height, 80);
    const double part = b.width * b.height / 8000.0;
    EXPECT_GT(part, 0.017);
    EXPECT_LT(part, 0.345);
  }
  EXPECT_NEAR(erased, draws * 0.25, 120);
}

TEST(Augment, OnlyTheBoxIsErased) {
  std::vector<std::uint8_t> pixels(10 * 8 * 3, 7);
  erase({.x = 2, .y = 3, .width = 4, .height = 5}, {1, 2, 3}, {pixels.data(), 10, 8});
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const std::size_t x = i / 3 % 10;
    const std::size_t y = i / 30;
    const bool inside = x >= 2 && x < 6 && y >= 3;
    EXPECT_EQ(pixels[i], inside ? 1 + i % 3 : 7) << i;
  }
}

class Mixing : public Images {
 protected:
  std::vector<host_batch> batches_of(const plan<host_batch>& p) {
    auto data = eng_.run(p);
    std::vector<host_batch> out;
    for (host_batch& b : data) out.push_back(std::move(b));
    return out;
  }
  plan<host_batch> plain() const {
    return decoded({.size = side, .train = false, .resize = side}) | batch({.size = 6});
  }
  engine eng_{with_memory_store(store_)};
};

TEST_F(Mixing, MixupWeighsEachImageWithTheOneBeforeIt) {
  const auto before = batches_of(plain());
  const auto after = batches_of(plain() | map(mix_images({.mixup = 1, .seed = 3}), {.threads = 2}));
  ASSERT_EQ(after.size(), 2U);
  for (std::size_t b = 0; b < 2; ++b) {
    const double share = after[b].share;
    const std::size_t size = after[b].payload_bytes() / 6;
    for (std::size_t i = 0; i < 6; ++i) {
      const std::size_t other = (i + 5) % 6;
      EXPECT_EQ(after[b].labels[i], before[b].labels[i]);
      EXPECT_EQ(after[b].other_labels[i], before[b].labels[other]);
      for (std::size_t p = 0; p < size; ++p) {
        const double exact = share * before[b].data()[i * size + p] +
                             (1 - share) * before[b].data()[other * size + p];
        ASSERT_NEAR(after[b].data()[i * size + p], exact, 0.51);
      }
    }
  }
  EXPECT_NE(after[0].share, after[1].share);
}

TEST_F(Mixing, CutmixPastesOneBoxAndSaysItsShare) {
  const auto before = batches_of(plain());
  const auto after = batches_of(plain() | map(mix_images({.cutmix = 1, .seed = 4})));
  for (std::size_t b = 0; b < 2; ++b) {
    const std::size_t size = after[b].payload_bytes() / 6;
    for (std::size_t i = 0; i < 6; ++i) {
      const std::uint8_t* own = before[b].data() + i * size;
      const std::uint8_t* other = before[b].data() + (i + 5) % 6 * size;
      std::size_t pasted = 0;
      for (std::size_t p = 0; p < size; p += 3) {
        const std::uint8_t* got = after[b].data() + i * size + p;
        const bool is_own = std::equal(got, got + 3, own + p);
        ASSERT_TRUE(is_own || std::equal(got, got + 3, other + p));
        pasted += is_own ? 0 : 1;
      }
      EXPECT_DOUBLE_EQ(after[b].share, 1 - static_cast<double>(pasted) / (side * side));
    }
  }
}

// With a Beta distribution whose parameters are both alpha: mean 1/2, variance 1 / (4 (2 alpha +
// 1)).
TEST_F(Mixing, SharesAreBetaDistributed) {
  for (const double alpha : {0.2, 1.0, 4.0}) {
    std::vector<double> shares;
    // The smallest images: shares do not depend on size.
    host_batch b =
        batches_of(decoded({.size = 1, .train = false, .resize = 1}) | batch({.size = 6})).front();
    for (int i = 0; i < 4000; ++i) {
      b.origins.front().position = i;
      shares.push_back(mix_images({.mixup = alpha})(b).share);
    }
    const double n = static_cast<double>(shares.size());
    const double mean = std::accumulate(shares.begin(), shares.end(), 0.0) / n;
    double variance = 0;
    for (const double s : shares) variance += (s - mean) * (s - mean) / n;
    EXPECT_NEAR(mean, 0.5, 0.03) << alpha;
    EXPECT_NEAR(variance * 4 * (2 * alpha + 1), 1, 0.07) << alpha;
  }
}

// Their slots hold files, not pixels.
TEST(Augment, MixingRefusesBatchesWithEncodedImages) {
  host_batch b;
  b.labels = {1, 2};
  b.encoded.emplace_back(1, encoded_image());
  try {
    mix_images({.mixup = 1})(b);
    FAIL();
  } catch (const failure& why) {
    EXPECT_EQ(why.kind(), errc::usage);
  }
}

}  // namespace
}  // namespace millrace
