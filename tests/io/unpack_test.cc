#include "io/unpack/unpack.h"
#include "engine/coroutines/scope.h"
#include "engine/threads/io_thread.h"
#include "io/unpack/decoders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <ostream>
#include <stdexcept>

#include "engine/base/units.h"
#include "engine/threads/runtime.h"
#include "io/files/memory_source.h"
#include "io/standard_sources.h"
#include "tests/support/numbered.h"
#include "tests/support/packed.h"
#include "tests/support/seeds.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

using namespace std::string_literals;
using testing::numbered;
using testing::packed;

// The result of reading a compressed object.
struct unpacked {
  std::string content;
  std::optional<errc> failed;
  bool operator==(const unpacked&) const = default;
};

[[maybe_unused]] std::ostream& operator<<(std::ostream& out, const unpacked& u) {
  return out << u.content.size() << " bytes, "
             << (u.failed ? "error " + std::to_string(static_cast<int>(*u.failed)) : "no error");
}

// What is tested of a compression. A new one does not compile without it.
struct format {
  std::size_t head;  // minimum bytes for a stream to begin
  bool is_checked;   // has a checksum, as written by libarchive
  bool may_follow;   // one stream may follow another
};

format format_of(compression how) {
  switch (how) {
    case compression::none:
      break;
    case compression::gzip:
      return {.head = 2, .is_checked = true, .may_follow = true};
    case compression::bzip2:
      return {.head = 14, .is_checked = true, .may_follow = true};
    case compression::xz:
      return {.head = 12, .is_checked = true, .may_follow = true};
    case compression::zstd:
      return {.head = 4, .is_checked = false, .may_follow = true};
    case compression::lz4:
      return {.head = 4, .is_checked = true, .may_follow = true};
    case compression::lzw:
      return {.head = 3, .is_checked = false, .may_follow = false};
  }
  throw std::invalid_argument("no compression");
}

class Unpack : public ::testing::TestWithParam<known_compression> {
 protected:
  std::string compressed(const std::string& content) const {
    // libarchive's writers of these cannot write an empty stream.
    if (content.empty() && GetParam().how == compression::lz4)
      return "\x04\x22\x4d\x18\x64\x40\xa7\0\0\0\0\x05\x5d\xcc\x02"s;
    if (content.empty() && GetParam().how == compression::lzw) return "\x1f\x9d\x90"s;
    return packed(content, decoder_of(GetParam().how).filter);
  }

  unpacked read(const std::string& object, std::size_t piece_bytes) {
    const auto store = std::make_shared<memory_store>(piece_bytes);
    store->put("a", object);
    return testing::run_on(threads_.io(0), read_all(store));
  }

  // Reads the object in pieces of several sizes, which must not change the result.
  unpacked read(const std::string& object) {
    const unpacked whole = read(object, 1'000'000);
    for (const std::size_t piece : {1U, 700U}) EXPECT_EQ(read(object, piece), whole) << piece;
    return whole;
  }

  awaitable<unpacked> read_all(std::shared_ptr<const memory_store> store) {
    auto memory = std::make_shared<memory_share>("test", 64_MiB, default_host_allocator());
    scope tasks(threads_.io(0).executor());
    source_registry sources = standard_sources(threads_.io(0), options_);
    sources.add("memory", memory_source_factory(store));
    source_context context{threads_, threads_.io(0), tasks, memory, options_, counters_};
    auto opened = co_await sources.open(context, "memory:a");
    auto begun = co_await begin_reading(std::move(*opened));
    auto plain = unpack(context, {memory, memory},
                        {begun->how, std::move(begun->source), begun->first, "memory:a"}, 0);
    unpacked out;
    for (;;) {
      auto piece = co_await plain->read();
      if (!piece) out.failed = piece.error().kind();
      if (!piece || piece->empty()) break;
      out.content += piece->text();
    }
    tasks.stop();
    co_await tasks.join();
    co_return out;
  }

  runtime threads_{{.cpu_threads = 2}};
  source_options options_;
  source_counters counters_;
};

// libarchive's decoders keep this many unpacked bytes back when they find damage.
constexpr std::size_t most_lost = 128_KiB;

// Larger than that, and small when compressed.
std::string much() {
  std::string out;
  while (out.size() < 3 * most_lost) out += numbered(1'000);
  return out;
}

using UnpackOne = Unpack;

TEST_P(UnpackOne, WhatLibarchiveWritesIsReadBack) {
  for (const std::string& content : {""s, "some"s, much()}) {
    const std::string stream = compressed(content);
    EXPECT_EQ(compression_of(stream), GetParam().how);
    EXPECT_EQ(read(stream), (unpacked{content, {}}));
  }
}

TEST_P(Unpack, StreamsStandOneBehindTheOtherWithPaddingBetweenAndBehind) {
  const std::string first = compressed(numbered(5'000));
  const std::string second = compressed("the second");
  const unpacked both{numbered(5'000) + "the second", {}};
  EXPECT_EQ(read(first + second), both);
  for (const std::size_t zeros : {1U, 3U, 4U, 63U, 512U, 10'240U}) {
    const std::string padding(zeros, '\0');
    EXPECT_EQ(read(first + padding + second + padding), both) << zeros;
    EXPECT_EQ(read(first + padding + second + padding + "x").failed, errc::bad_archive) << zeros;
  }
}

TEST_P(Unpack, StreamsOfNothingAreEmpty) {
  const std::string nothing = compressed("");
  const std::string some = compressed("some");
  EXPECT_EQ(read(nothing), unpacked());
  EXPECT_EQ(read(nothing + nothing + some), (unpacked{"some", {}}));
  EXPECT_EQ(read(some + std::string(5, '\0') + nothing), (unpacked{"some", {}}));
}

TEST_P(Unpack, WhatBeginsNoStreamBehindOneIsAnErrorAfterAllOfTheFirst) {
  const std::string content = much();
  const std::string first = compressed(content);
  for (const std::string& garbage : {"x", "garbage", "BZ", "\x1f"}) {
    const unpacked found = read(first + garbage);
    EXPECT_EQ(found.content, content) << garbage;
    EXPECT_TRUE(found.failed) << garbage;
  }
  const unpacked long_one = read(first + numbered(3'000));
  EXPECT_EQ(long_one, (unpacked{content, errc::bad_archive}));
}

TEST_P(Unpack, ASecondStreamThatIsCutIsAnErrorWhereverThatIs) {
  const std::string content = much();
  const std::string first = compressed(content);
  const std::string second = compressed(numbered(3'000));
  const std::string all = content + numbered(3'000);
  for (std::size_t at = 1; at < 65; at += testing::every()) {
    const unpacked found = read(first + second.substr(0, at));
    EXPECT_EQ(found.failed, errc::truncated) << at;
    EXPECT_TRUE(all.starts_with(found.content)) << at;
    EXPECT_GE(found.content.size() + most_lost, content.size()) << at;
    if (at < format_of(GetParam().how).head) EXPECT_EQ(found.content.size(), content.size()) << at;
  }
  const unpacked nearly = read(first + second.substr(0, second.size() - 1));
  EXPECT_EQ(nearly.failed, errc::truncated);
}

TEST_P(Unpack, ASecondStreamThatIsDamagedIsAnErrorWhereverThatIs) {
  const std::string content = much();
  const std::string first = compressed(content);
  const std::string all = content + numbered(3'000);
  for (std::size_t at = 0; at < 64; at += testing::every()) {
    std::string second = compressed(numbered(3'000));
    second[at] = static_cast<char>(second[at] ^ 0x55);
    const unpacked found = read(first + second);
    // Some bytes of a head have no effect: a time, a system.
    if (!found.failed && format_of(GetParam().how).is_checked)
      EXPECT_EQ(found.content.size(), all.size()) << at;
    const std::size_t sure = std::min(found.content.size(), content.size());
    EXPECT_EQ(found.content.compare(0, sure, content, 0, sure), 0) << at;
    EXPECT_GE(sure + most_lost, content.size()) << at;
    if (at < 3) {
      EXPECT_TRUE(found.failed) << at;
      EXPECT_EQ(sure, content.size()) << at;
    }
  }
}

TEST_P(Unpack, WhatComesBeforeDamageIsGivenHoweverTheInputIsCut) {
  const std::string content = numbered(500'000);
  std::string damaged = compressed(content);
  damaged[damaged.size() * 3 / 4] ^= 0x10;
  const unpacked found = read(damaged);
  EXPECT_EQ(found.failed.has_value(), format_of(GetParam().how).is_checked);
  EXPECT_GE(found.content.size() + most_lost, content.size() / 2);
  EXPECT_EQ(read(damaged.substr(0, damaged.size() / 2)).failed, errc::truncated);
}

std::vector<known_compression> concatenated() {
  std::vector<known_compression> out(known_compressions.begin(), known_compressions.end());
  std::erase_if(out, [](const known_compression& c) { return !format_of(c.how).may_follow; });
  return out;
}

// "gz"
std::string name_of(const ::testing::TestParamInfo<known_compression>& tested) {
  return std::string(tested.param.ending.substr(1));
}

INSTANTIATE_TEST_SUITE_P(Formats, UnpackOne, ::testing::ValuesIn(known_compressions), name_of);
INSTANTIATE_TEST_SUITE_P(Formats, Unpack, ::testing::ValuesIn(concatenated()), name_of);

}  // namespace
}  // namespace millrace
