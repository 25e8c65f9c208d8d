#include <fcntl.h>
#include <gtest/gtest.h>

#include <fstream>

#include "engine/base/random.h"
#include "io/cache/seen_versions.h"
#include "io/hashes.h"
#include "tests/support/cached_object.h"
#include "tests/support/seeds.h"

namespace millrace {
namespace {

using testing::numbered;
using testing::object_url;
using testing::origin;

// Every file of the cache is cut and flipped at every boundary, at each byte of its tail, and at
// random: the bytes that are read are always right.
class DamagedCache : public testing::cache_test {
 protected:
  static constexpr std::size_t size = 2 * cache_block_bytes + 1000;
  void SetUp() override { from_ = std::make_shared<origin>(numbered(size)); }

  std::string saved(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& file, const std::string& what) {
    const held_file out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(write_exactly(out.fd(), bytes_of(what), 0), 0);
  }
  // Significant places, and others.
  std::vector<std::size_t> places(std::size_t length, std::size_t tail_from) {
    std::vector<std::size_t> out{0, 1, 511, 512, 4095, 4096, length - 1};
    for (std::size_t block = cache_block_bytes; block < length; block += cache_block_bytes) {
      for (const std::size_t at : {block - 1, block, block + 1}) out.push_back(at);
    }
    for (std::size_t at = tail_from; at < length; ++at) out.push_back(at);
    random_stream random(7, purpose::stage);
    for (int i = 0; i < 40; ++i) out.push_back(random.below(static_cast<std::uint32_t>(length)));
    std::uint64_t place = 0;
    std::erase_if(out, [&](std::size_t /*at*/) { return !testing::is_taken(place++); });
    return out;
  }
  // Whether the entry in its present state would give a wrong byte, read as its readers read it.
  bool gives_wrong_bytes() {
    const auto file = cache_folder(cache()).open(cache_name(object_url, from_->version));
    if (!file) return false;  // removed, to be fetched again
    if (file->bytes() != size) return true;
    std::string block(cache_block_bytes, '\0');
    for (std::uint64_t i = 0; i < file->blocks(); ++i) {
      const std::uint64_t at = i * cache_block_bytes;
      const std::size_t n = std::min<std::size_t>(cache_block_bytes, size - at);
      if (!read_exactly(file->fd(), block.data(), n, at)) continue;  // an error: fetched again
      const bool right = std::string_view(block).substr(0, n) == from_->content.substr(at, n);
      if (file->has_sum(i, crc32c(std::as_bytes(std::span(block).first(n)))) && !right) return true;
    }
    return false;
  }
};

TEST_F(DamagedCache, ACompleteEntryHealsOrIsHarmless) {
  read();
  const std::string whole = saved(path());
  int tried = 0;
  for (const std::size_t at : places(whole.size(), size)) {
    for (const bool cut : {false, true}) {
      std::string wrong = whole;
      cut ? wrong.resize(at) : void(wrong[at] = static_cast<char>(wrong[at] ^ (1 << at % 8)));
      put(path(), wrong);
      ASSERT_FALSE(gives_wrong_bytes()) << at << (cut ? " cut" : " flipped");
      ++tried;
    }
  }
  EXPECT_GT(tried, 400 / testing::every());
  // For some, the whole way: read, fetched again, complete again.
  for (const std::size_t at : {0UL, cache_block_bytes - 1, cache_block_bytes, size - 1, size,
                               size + 5, size + 20, whole.size() - 9, whole.size() - 1}) {
    for (const bool cut : {false, true}) {
      std::string wrong = whole;
      cut ? wrong.resize(at) : void(wrong[at] = static_cast<char>(wrong[at] ^ 0x10));
      put(path(), wrong);
      ASSERT_EQ(read(), from_->content) << at;
      ASSERT_EQ(saved(path()), whole) << at;
    }
  }
}

TEST_F(DamagedCache, WhatAWriterLeftHealsOrIsHarmless) {
  const std::size_t written = 2 * cache_block_bytes + 500;
  {
    const auto w = writer();
    ASSERT_TRUE(w->append(content(0, written)));
  }
  const std::string part = saved(path(".part"));
  const std::string sums = saved(path(".sums"));
  ASSERT_EQ(sums.size(), cache_mark.size() + 8);
  int tried = 0;
  const auto check = [&](const std::string& wrong_part, const std::string& wrong_sums,
                         std::size_t at) {
    put(path(".part"), wrong_part);
    put(path(".sums"), wrong_sums);
    const auto w = writer();
    ASSERT_NE(w, nullptr) << at;
    std::string kept(w->size(), '\0');
    const auto reader = cache_folder(cache()).open_part(cache_name(object_url, from_->version));
    ASSERT_TRUE(reader);
    ASSERT_EQ((*reader)->look().there, w->size()) << at;
    ASSERT_TRUE(read_exactly((*reader)->fd(), kept.data(), kept.size(), 0));
    ASSERT_EQ(kept, from_->content.substr(0, kept.size())) << at;
    ++tried;
  };
  for (const std::size_t at : places(part.size(), part.size())) {
    std::string wrong = part;
    wrong[at] = static_cast<char>(wrong[at] ^ 0x20);
    check(wrong, sums, at);
    check(part.substr(0, at), sums, at);
    check(wrong + wrong, sums + sums, at);
  }
  for (std::size_t at = 0; at < sums.size(); ++at) {
    std::string wrong = sums;
    wrong[at] = static_cast<char>(wrong[at] ^ 1);
    check(part, wrong, at);
    check(part, sums.substr(0, at), at);
  }
  EXPECT_GT(tried, 150 / testing::every());
  std::string longer = part + std::string(5'000'000, 'x');  // than the object and its tail
  put(path(".part"), longer);
  put(path(".sums"), sums);
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(from_->opened, 1);
}

TEST_F(DamagedCache, WhatWasSeenHealsOrIsHarmless) {
  read();
  const std::string file = folder_ / ("c/" + seen_name(object_url));
  const std::string whole = saved(file);
  for (std::size_t at = 0; at < whole.size(); at += testing::every()) {
    for (const int bit : {0, 3, 7}) {
      std::string wrong = whole;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << bit));
      put(file, wrong);
      const auto seen = remembered_version(folder_ / "c", object_url);
      // If it is another version, no entry has its name.
      const auto entry = seen ? cache_folder(cache()).open(cache_name(object_url, *seen)) : nullptr;
      if (entry) {
        EXPECT_EQ(seen->etag, from_->version.etag) << at;
      }
    }
    put(file, whole.substr(0, at));
    EXPECT_FALSE(remembered_version(folder_ / "c", object_url)) << at;
  }
}

}  // namespace
}  // namespace millrace
