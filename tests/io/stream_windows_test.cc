#include "io/unpack/decoders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/units.h"
#include "tests/support/numbered.h"
#include "tests/support/packed.h"

namespace millrace {
namespace {

using namespace std::string_literals;
using testing::numbered;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct place {
  std::uint64_t needed;
  std::size_t passed;  // bytes that the decoder had when it grew
  bool operator==(const place&) const = default;
};

struct seen {
  std::vector<place> grown;
  std::size_t passed = 0;
  std::optional<error> failed;
};

// The windows of a stream that arrives in pieces of `piece` bytes, as unpack() feeds it. Padding is
// dropped.
seen windows_in(compression how, std::string_view stream, std::size_t piece) {
  const auto windows = decoder_of(how).windows();
  seen out;
  std::uint64_t before = 0;
  std::size_t given = 0;
  for (std::size_t size = piece; out.passed < stream.size(); size = piece) {
    given = std::min(std::max(given, out.passed + size), stream.size());
    const auto next = stream.substr(out.passed, given - out.passed);
    const auto n = windows->feed(bytes_of(next));
    out.passed += n + windows->padding();
    if (windows->needed() > before) {
      before = windows->needed();
      out.grown.push_back({before, out.passed});
      continue;
    }
    const bool is_end = windows->lacks() > 0 && given == stream.size();
    if (is_end) windows->end(next);
    if (windows->lacks() > 0) given = out.passed + windows->lacks();
    out.failed = windows->failed();
    if (is_end || (n == 0 && windows->failed())) break;
  }
  return out;
}

// The same in pieces of any size; all bytes are passed on.
std::uint64_t needed_by(compression how, const std::string& stream) {
  const seen whole = windows_in(how, stream, stream.size());
  EXPECT_EQ(whole.passed, stream.size());
  EXPECT_FALSE(whole.failed) << whole.failed->message();
  for (const auto piece :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, std::size_t{1000}}) {
    const seen cut = windows_in(how, stream, piece);
    EXPECT_EQ(cut.grown, whole.grown) << piece;
    EXPECT_EQ(cut.passed, stream.size()) << piece;
  }
  return whole.grown.empty() ? 0 : whole.grown.back().needed + stream_windows::free_bytes;
}

TEST(StreamWindows, AreThoseOfTheStreamsOwnHeaders) {
  const std::string content = numbered(300'000);
  const auto xz = [&](int level) {
    return testing::packed(content, ARCHIVE_FILTER_XZ,
                           fmt::format("xz:compression-level={}", level));
  };
  EXPECT_EQ(needed_by(compression::xz, xz(6)), 8_MiB);
  EXPECT_EQ(needed_by(compression::xz, xz(9)), 64_MiB);
  EXPECT_EQ(needed_by(compression::zstd, testing::packed(content, ARCHIVE_FILTER_ZSTD)), 2_MiB);
  EXPECT_EQ(needed_by(compression::lz4, testing::packed(content, ARCHIVE_FILTER_LZ4)),
            12_MiB + 64_KiB);
  EXPECT_EQ(needed_by(compression::bzip2, testing::packed(content, ARCHIVE_FILTER_BZIP2)),
            4'000'000U);
  EXPECT_FALSE(decoder_of(compression::gzip).windows());
  EXPECT_FALSE(decoder_of(compression::lzw).windows());
}

TEST(StreamWindows, OfLaterStreamsAreSeenBeforeTheirHeadersArePassed) {
  const std::string content = numbered(300'000);
  const std::string first = testing::packed(content, ARCHIVE_FILTER_XZ, "xz:compression-level=6");
  const std::string second = testing::packed(content, ARCHIVE_FILTER_XZ, "xz:compression-level=9");
  constexpr std::size_t stream_header = 12;
  for (const std::string& padding : {""s, std::string(8, '\0')}) {
    const std::string both = first + padding + first + padding + second;
    const seen found = windows_in(compression::xz, both, both.size());
    ASSERT_EQ(found.grown.size(), 2U);
    const std::size_t begin = both.size() - second.size() + stream_header;
    EXPECT_GT(found.grown[1].passed, begin);
    EXPECT_LT(found.grown[1].passed, begin + 12);  // its header has 12 bytes
    EXPECT_EQ(needed_by(compression::xz, both), 64_MiB);
  }
  const std::string small =
      testing::packed(content, ARCHIVE_FILTER_ZSTD, "zstd:compression-level=1");
  const std::string skipped = "\x5a\x2a\x4d\x18\x03\0\0\0abc"s;
  const std::string large =
      testing::packed(content, ARCHIVE_FILTER_ZSTD, "zstd:compression-level=19");
  EXPECT_EQ(needed_by(compression::zstd, small + skipped + large), 8_MiB);
}

// Block headers of the xz format, with sizes, preceding filters, and dictionaries up to 4 GiB.
TEST(StreamWindows, OfEveryXzBlock) {
  const std::string stream = "\xfd\x37zXZ\0\0\1abcd"s;
  const auto block = [&](const std::string& filters, char flags) {
    std::string header = flags + filters;
    header.resize((header.size() + 3) / 4 * 4 + 3);
    return stream + static_cast<char>((header.size() + 1) / 4 - 1) + header;
  };
  const auto lzma2 = [](char bits) { return "\x21\1"s + bits; };
  const auto all = [&](const std::string& filters, char flags) {
    const std::string made = block(filters, flags);
    const seen found = windows_in(compression::xz, made, made.size());
    EXPECT_FALSE(found.failed);
    return found.grown.empty() ? 0 : found.grown.back().needed + stream_windows::free_bytes;
  };
  EXPECT_EQ(all(lzma2(36), 0), 1_GiB);
  EXPECT_EQ(all(lzma2(37), 0), 1_GiB + 512_MiB);
  EXPECT_EQ(all(lzma2(40), 0), 4_GiB - 1);
  EXPECT_EQ(all("\x80\x80\x04\xff\xff\x7f"s + lzma2(36), static_cast<char>(0xc0)), 1_GiB);
  EXPECT_EQ(all("\x04\0"s + lzma2(36), 1), 1_GiB);
  EXPECT_EQ(all("\x03\1\x09\x04\0"s + lzma2(36), 2), 1_GiB);
  for (const std::string& wrong : {lzma2(41), "\x04\0"s, "\x21\x7f\1"s, "\xff\xff"s}) {
    const std::string made = block(wrong, 0);
    const seen found = windows_in(compression::xz, made, made.size());
    ASSERT_TRUE(found.failed) << wrong;
    EXPECT_EQ(found.failed->kind(), errc::bad_archive);
    EXPECT_LT(found.passed, made.size());
  }
}

TEST(StreamWindows, OfEveryZstdFrame) {
  const auto frame = [](const std::string& header) {
    return "\x28\xb5\x2f\xfd"s + header + "\1\0\0"s;  // one empty block, the last
  };
  const auto byte = [](int value) { return static_cast<char>(value); };
  EXPECT_EQ(needed_by(compression::zstd, frame({byte(0), byte(17 << 3)})), 128_MiB);
  EXPECT_EQ(needed_by(compression::zstd, frame({byte(0), byte(16 << 3 | 7)})), 120_MiB);
  // The content is smaller than the window; and no window at all.
  EXPECT_EQ(needed_by(compression::zstd, frame({byte(0x80), byte(17 << 3), 0, 0, byte(0x20), 0})),
            2_MiB);
  EXPECT_EQ(needed_by(compression::zstd, frame({byte(0xa0), 0, 0, byte(0x20), 0})), 2_MiB);
  EXPECT_EQ(needed_by(compression::zstd, frame({byte(0x20), 100})), 0U);
  for (const std::string& wrong :
       {frame({byte(0), byte(17 << 3 | 1)}), frame({byte(0), byte(0xff)}),
        frame(std::string(1, byte(0xe0)) + std::string(8, '\xff'))}) {
    const seen found = windows_in(compression::zstd, wrong, wrong.size());
    ASSERT_TRUE(found.failed);
    EXPECT_EQ(found.failed->kind(), errc::too_large);
    EXPECT_NE(found.failed->message().find("zstd --long=27"), std::string::npos);
  }
  const std::string other = frame({byte(0x20), 0}) + "\x27\xb5\x2f\xfd more";
  EXPECT_EQ(windows_in(compression::zstd, other, 5).failed->kind(), errc::bad_archive);
}

TEST(StreamWindows, OfOldLz4Frames) {
  const std::string frame = testing::packed(numbered(100'000), ARCHIVE_FILTER_LZ4);
  EXPECT_EQ(needed_by(compression::lz4, frame + frame), 12_MiB + 64_KiB);
  const std::string old = "\x02\x21\x4c\x18\x04\0\0\0abcd\0\1\0\0"s + numbered(256);
  const std::string skipped = "\x50\x2a\x4d\x18\x03\0\0\0abc"s;
  EXPECT_EQ(needed_by(compression::lz4, frame + old), 25_MiB);
  EXPECT_EQ(needed_by(compression::lz4, old + frame + skipped + old), 25_MiB);
}

TEST(StreamWindows, WhatBeginsNoStreamIsNotPassed) {
  for (const known_compression& known : known_compressions) {
    const compression how = known.how;
    // Of bzip2, only the decoder finds the ends of streams (Unpack tests them).
    if (!decoder_of(how).windows() || how == compression::bzip2) continue;
    const std::string stream = testing::packed(numbered(100'000), decoder_of(how).filter);
    for (const std::size_t piece : {1U, 5U, 1'000'000U}) {
      for (const std::string& wrong : {"no stream at all"s, "no"s}) {
        const seen found = windows_in(how, stream + wrong, piece);
        ASSERT_TRUE(found.failed) << known.ending;
        EXPECT_EQ(found.failed->kind(), errc::bad_archive) << known.ending;
        EXPECT_EQ(found.passed, stream.size()) << known.ending;
      }
      const seen cut = windows_in(how, stream + stream.substr(0, 3), piece);
      ASSERT_TRUE(cut.failed) << known.ending;
      EXPECT_EQ(cut.failed->kind(), errc::truncated) << known.ending;
      EXPECT_EQ(cut.passed, stream.size()) << known.ending;
    }
  }
}

}  // namespace
}  // namespace millrace
