#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "engine/base/random.h"
#include "pipeline/codecs/huffman_codes.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using file_bytes = std::vector<std::byte>;
using pixels = std::vector<std::uint8_t>;

// Bits as a JPEG holds them: the last byte filled with ones, a zero after every 0xFF, and a marker.
std::vector<std::uint8_t> stuffed(std::string bits) {
  while (bits.size() % 8 != 0) bits += '1';
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i < bits.size(); i += 8) {
    out.push_back(static_cast<std::uint8_t>(std::stoi(bits.substr(i, 8), nullptr, 2)));
    if (out.back() == 0xff) out.push_back(0);
  }
  out.insert(out.end(), {0xff, 0xd9});
  return out;
}

TEST(Huffman, BitsComeAsTheyStandWhereverABytesIsStuffed) {
  random_stream random(7, purpose::fake_data);
  for (int round = 0; round < 200; ++round) {
    // In every fourth round almost only ones.
    std::string bits;
    for (int i = 0; i < 997; ++i) bits += random.below(round % 4 == 0 ? 64 : 2) != 0 ? '1' : '0';
    const auto data = stuffed(bits);
    bit_reader reader(data.data(), data.data() + data.size());
    for (std::size_t at = 0; at < bits.size();) {
      const auto most = static_cast<std::uint32_t>(std::min<std::size_t>(15, bits.size() - at));
      const auto size = 1 + random.below(most);
      reader.fill();
      ASSERT_EQ(reader.top(size), std::stoul(bits.substr(at, size), nullptr, 2)) << at;
      reader.drop(size);
      at += size;
    }
    EXPECT_FALSE(reader.overrun());
    reader.fill();
    reader.drop(9);
    EXPECT_TRUE(reader.overrun());
  }
}

TEST(Huffman, RestartMarkersAreTakenWhereTheyBelong) {
  const auto marked = [](std::uint8_t byte, std::uint8_t marker) {
    return std::vector<std::uint8_t>{0xab, byte, 0xff, marker, 0x12, 0x34};
  };
  const auto after = [](const std::vector<std::uint8_t>& data, unsigned bits, unsigned number) {
    bit_reader reader(data.data(), data.data() + data.size());
    reader.fill();
    reader.drop(bits);
    return reader.skip_restart_marker(number) ? (reader.fill(), reader.top(16)) : 0;
  };
  EXPECT_EQ(after(marked(0xcd, 0xd3), 16, 3), 0x1234U);
  EXPECT_EQ(after(marked(0xcd, 0xd3), 9, 3), 0x1234U);  // the rest of a byte is filled
  EXPECT_EQ(after(marked(0xcd, 0xd3), 8, 3), 0U);       // an unread byte
  EXPECT_EQ(after(marked(0xcd, 0xd3), 16, 4), 0U);      // another number
  EXPECT_EQ(after(marked(0xcd, 0xd9), 16, 3), 0U);      // the end
  EXPECT_EQ(after({0xab, 0xcd, 0xff}, 16, 3), 0U);
}

// A table with codes of the given lengths, and its symbols in random order.
struct code {
  std::array<std::uint8_t, 17> counts{};
  std::array<std::uint8_t, 256> bytes{};
  std::map<std::uint8_t, std::string> codes;  // the bits of each symbol's code
};

code make_code(const std::array<std::uint8_t, 17>& counts, random_stream& random) {
  code out{.counts = counts};
  for (std::size_t i = 0; i < 256; ++i) out.bytes[i] = static_cast<std::uint8_t>(i);
  for (std::size_t i = 255; i > 0; --i)
    std::swap(out.bytes[i], out.bytes[random.below(static_cast<std::uint32_t>(i) + 1)]);
  unsigned next = 0;
  std::size_t place = 0;
  for (unsigned length = 1; length <= 16; ++length, next <<= 1) {
    for (unsigned i = 0; i < counts[length]; ++i, ++next) {
      std::string& bits = out.codes[out.bytes[place++]];
      for (unsigned b = length; b-- > 0;) bits += (next >> b) % 2 != 0 ? '1' : '0';
    }
  }
  return out;
}

// Whatever follows it, a symbol is found with its exact number of bits.
TEST(Huffman, EverySymbolIsFound) {
  random_stream random(8, purpose::fake_data);
  const std::array<std::array<std::uint8_t, 17>, 3> shapes{
      {{0, 0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125},
       {0, 0, 0, 0, 0, 0, 0, 0, 255},
       {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}};
  for (const auto& counts : shapes) {
    const code c = make_code(counts, random);
    code_table table;
    ASSERT_TRUE(table.assign(c.counts, c.bytes, true));
    for (const auto& [byte, bits] : c.codes) {
      for (int round = 0; round < 20; ++round) {
        std::string text = bits;
        for (int i = 0; i < 40; ++i) text += random.below(2) != 0 ? '1' : '0';
        const auto data = stuffed(text);
        bit_reader reader(data.data(), data.data() + data.size());
        reader.fill();
        const symbol& s = table.look_up(reader);
        const unsigned size = byte & 15U;
        if (s.kind == symbol::not_found) {
          ASSERT_GT(bits.size(), look_up_bits);
          ASSERT_EQ(table.find_long(reader), byte);
        } else if (size == 0) {
          ASSERT_EQ(s.kind, byte == 0xf0 ? symbol::with_value : symbol::end_of_block);
          ASSERT_EQ(s.bits, bits.size());
        } else {
          ASSERT_EQ(s.run, byte >> 4);
          const bool fits = bits.size() + size <= look_up_bits;
          ASSERT_EQ(s.kind, fits ? symbol::with_value : symbol::without_value);
          ASSERT_EQ(s.bits, bits.size() + (fits ? size : 0));
          const auto value = std::stoul(text.substr(bits.size(), size), nullptr, 2);
          ASSERT_EQ(s.value,
                    fits ? value_of(static_cast<unsigned>(value), size) : static_cast<int>(size));
        }
      }
    }
  }
}

TEST(Huffman, CodesThatAreNoPrefixCodeAreRefused) {
  random_stream random(9, purpose::fake_data);
  code_table table;
  const std::array<std::uint8_t, 256> bytes{};
  EXPECT_FALSE(table.assign(std::array<std::uint8_t, 17>{0, 3}, bytes, true));
  EXPECT_FALSE(table.assign(std::array<std::uint8_t, 17>{0, 2, 1}, bytes, true));
  EXPECT_FALSE(
      table.assign(std::array<std::uint8_t, 17>{0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 200}, bytes, true));
  // It can be assigned again.
  const code good = make_code({0, 0, 2, 2}, random);
  EXPECT_TRUE(table.assign(good.counts, good.bytes, true));
  const auto ones = stuffed("1111111111111111");
  bit_reader reader(ones.data(), ones.data() + ones.size());
  reader.fill();
  EXPECT_EQ(table.look_up(reader).kind, symbol::not_found);
  EXPECT_EQ(table.find_long(reader), -1);
}

// Decodes a part of an image with our decoder and with libjpeg's.
class Damaged : public ::testing::Test {
 protected:
  struct outcome {
    pixels image;
    std::string error;
    int warnings = 0;
  };
  outcome decoded(const file_bytes& file, bool own, bool lenient) {
    outcome out;
    const auto choose = [](int width, int height) {
      const pixel_box crop{width / 4, height / 4, width / 2, height / 2};
      return view_of_image{crop, 24, 24, {0, 0, 24, 24}, false};
    };
    const auto place = [&](const view_of_image& v) {
      out.image.resize(output_bytes(v));
      return std::span(out.image);
    };
    const auto done = decoder_.decode(
        file, {.lenient = lenient, .fill_truncated = lenient, .own_huffman = own}, choose, place);
    if (!done) out = {.image = {}, .error = std::string(done.error().message())};
    out.warnings = decoder_.warnings();
    return out;
  }
  void expect_same(const file_bytes& file, const std::string& what) {
    for (const bool lenient : {false, true}) {
      const outcome by_library = decoded(file, false, lenient);
      const outcome own = decoded(file, true, lenient);
      EXPECT_EQ(own.error, by_library.error) << what;
      EXPECT_EQ(own.warnings, by_library.warnings) << what;
      EXPECT_TRUE(own.image == by_library.image) << what;
      failures_ += by_library.error.empty() ? 0 : 1;
    }
  }

  int failures_ = 0;

 private:
  jpeg_decoder decoder_;
};

// Detected by what it skips: coefficients that an image decoded at a quarter does not need.
TEST(Huffman, ItIsInUseWhereverItCanBeBuilt) {
  constexpr int side = 256;
  const file_bytes file = encode_jpeg(fake_image({.size = side}, 3, 1), side, side, 95);
  const auto at_a_quarter = [&](bool own) {
    pixels out;
    jpeg_decoder decoder;
    const auto choose = [](int width, int height) { return whole_image(width, height, side / 5); };
    const auto place = [&](const view_of_image& v) {
      out.resize(output_bytes(v));
      return std::span(out);
    };
    EXPECT_TRUE(decoder.decode(file, {.own_huffman = own, .fast = true}, choose, place));
    return out;
  };
#if __has_include(<jpegint.h>)
  constexpr bool can_be_built = true;
#else
  constexpr bool can_be_built = false;
#endif
  EXPECT_EQ(at_a_quarter(true) != at_a_quarter(false), can_be_built);
}

TEST_F(Damaged, WhateverIsWrongLibjpegSaysIt) {
  constexpr int side = 70;
  const file_bytes plain = encode_jpeg(fake_image({.size = side}, 3, 1), side, side, 92);
  for (const file_bytes& good : {plain, with_restart_runs(plain, 5).value()}) {
    ASSERT_TRUE(decoded(good, true, false).error.empty());
    random_stream random(10, purpose::fake_data);
    for (std::size_t at = good.size() / 3; at < good.size(); at += 3) {
      const auto offset = static_cast<std::ptrdiff_t>(at);
      file_bytes file = good;
      file[at] ^= static_cast<std::byte>(1U << random.below(8));
      expect_same(file, fmt::format("a bit changed at {}", at));
      file[at] = std::byte{0xff};
      expect_same(file, fmt::format("0xFF at {}", at));
      file = good;
      file.erase(file.begin() + offset);
      expect_same(file, fmt::format("no byte {}", at));
      file = good;
      file.insert(file.begin() + offset, 2, std::byte{0});
      expect_same(file, fmt::format("bytes before {}", at));
      file.resize(at);
      expect_same(file, fmt::format("cut at {}", at));
    }
  }
  EXPECT_GT(failures_, 100);
}

}  // namespace
}  // namespace millrace
