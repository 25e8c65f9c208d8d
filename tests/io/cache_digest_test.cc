#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <thread>

#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/threads/io_thread.h"
#include "io/hashes.h"
#include "tests/support/cached_object.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::object_url;

// Objects whose server sends their digest: a reader of the whole object never succeeds with other
// bytes, whichever process fetched them, and no entry is ever complete with other bytes.
class CachedDigest : public testing::cache_test {
 protected:
  CachedDigest() { from_->version.digest = digest_of_bytes(from_->content); }

  static expected_digest digest_of_bytes(const std::string& text) {
    return {hash_algorithm::sha256, digest_of(hash_algorithm::sha256, text), "repr-digest"};
  }
  static std::span<const std::byte> span_of(const std::string& text) {
    return std::as_bytes(std::span(text));
  }
  static bool says_integrity(const std::string& text) {
    return text.find("do not have the digest") != std::string::npos;
  }
  // A writer that has written `text`, and sums that fit it: of a program that was stopped, or that
  // has died, once it is destroyed.
  std::unique_ptr<cache_writer> writer_of(const std::string& text) {
    auto w = writer();
    EXPECT_TRUE(w->append(span_of(text)));
    return w;
  }
  std::string wrong() const {
    std::string text = from_->content;
    text[10] = static_cast<char>(text[10] ^ 1);
    return text;
  }
};

TEST_F(CachedDigest, WrongBytesOfAnOriginAreAnErrorAndNoEntry) {
  const std::string right = from_->content;
  from_->content = wrong();
  const auto got = read(cache(), {0, 1'000'000});
  EXPECT_TRUE(says_integrity(got.front())) << got.front().substr(0, 200);
  EXPECT_EQ(got.back(), from_->content.substr(1'000'000));  // a part of it has no digest
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_FALSE(std::filesystem::exists(path(".part")));
  EXPECT_EQ(said().find("without a cache"), std::string::npos) << said();
  from_->content = right;
  EXPECT_EQ(read(), right);
  EXPECT_EQ(read(), right);
  EXPECT_TRUE(std::filesystem::exists(path()));
}

// The origin's source reports it, if only the answer to a GET has the digest.
TEST_F(CachedDigest, ReadersHearWhatTheOriginsSourceFound) {
  from_->version.digest.reset();
  from_->ends_wrong = true;
  EXPECT_TRUE(says_integrity(read()));
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_FALSE(std::filesystem::exists(path(".part")));
}

// A filler is killed at each point, after it has written wrong bytes that fit their sums.
TEST_F(CachedDigest, WhatADeadFillerLeftIsCheckedWithTheRest) {
  int refused = 0;
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{1}, cache_block_bytes - 1, cache_block_bytes,
        cache_block_bytes + 1, 2 * cache_block_bytes, from_->content.size() - 1}) {
    writer_of(wrong().substr(0, at)).reset();
    const std::string got = read();
    if (got == from_->content) {
      EXPECT_LT(at, cache_block_bytes);
    } else {
      EXPECT_TRUE(says_integrity(got)) << at;
      EXPECT_FALSE(std::filesystem::exists(path())) << at;
      ++refused;
    }
    EXPECT_EQ(read(), from_->content) << at;
    EXPECT_EQ(read(), from_->content) << at;
    std::filesystem::remove(path());
  }
  EXPECT_EQ(refused, 4);
}

// Right bytes from a filler that stops, and the rest from the origin; then wrong ones.
TEST_F(CachedDigest, WhoPassesAStoppedFillerChecksWhatItHadFromIt) {
  for (const bool right : {true, false}) {
    const auto stopped = writer_of((right ? from_->content : wrong()).substr(0, 1'500'000));
    const std::string got = read(cache(100ms), {0}).front();
    if (right) {
      EXPECT_EQ(got, from_->content);
    } else {
      EXPECT_TRUE(says_integrity(got)) << got.substr(0, 200);
    }
    stopped->give_up();
  }
}

TEST_F(CachedDigest, AnEntryThatNobodyCheckedIsCheckedByItsReaders) {
  const auto digest = std::exchange(from_->version.digest, std::nullopt);
  for (const bool right : {true, false}) {
    {
      const auto w = writer_of(right ? from_->content : wrong());
      ASSERT_TRUE(w->finish());
    }
    from_->version.digest = digest;
    const std::string got = read();
    if (right) {
      EXPECT_EQ(got, from_->content);
      EXPECT_EQ(from_->opened, 0);
      std::filesystem::remove(path());
    } else {
      EXPECT_TRUE(says_integrity(got)) << got.substr(0, 200);
      EXPECT_FALSE(std::filesystem::exists(path()));
    }
    from_->version.digest.reset();
  }
  from_->version.digest = digest;
  EXPECT_EQ(read(), from_->content);
}

TEST_F(CachedDigest, ADamagedEntryIsHealedAndTheWholeChecked) {
  for (const std::size_t at : {std::size_t{0}, cache_block_bytes, 2 * cache_block_bytes}) {
    EXPECT_EQ(read(), from_->content);
    {
      std::fstream entry(path(), std::ios::in | std::ios::out | std::ios::binary);
      entry.seekp(static_cast<std::streamoff>(at));
      entry << "damaged";
    }
    EXPECT_EQ(read(), from_->content) << at;
    EXPECT_NE(said().find("is damaged at byte"), std::string::npos);
  }
  EXPECT_EQ(counters_.cache_healed, 3U);
}

TEST_F(CachedDigest, AnEntryIsNotFinishedBeforeAllOfItHasCome) {
  const auto w = writer_of(from_->content.substr(0, 1'000'000));
  EXPECT_FALSE(w->finish());
  EXPECT_FALSE(std::filesystem::exists(path()));
}

// Fillers that start at the same time, before any has written a byte.
TEST_F(CachedDigest, FillersAtTheSameTimeKeepToTheSize) {
  auto how = cache();
  how.most_bytes = 15'000'000;
  constexpr int count = 6;
  std::latch all_here(count);
  std::vector<std::thread> fillers;
  std::atomic<int> filled = 0;
  for (int i = 0; i < count; ++i) {
    fillers.emplace_back([&, i] {
      const std::string url = "http://host/" + std::to_string(i);
      const object_version version{.total = 10'000'000, .etag = "\"x\"", .last_modified = {}};
      const cache_folder folder(how);
      all_here.arrive_and_wait();
      auto w = folder.fill(cache_name(url, version), url, version);
      if (!w) {
        EXPECT_EQ(w.error().kind(), errc::too_large);
        return;
      }
      const std::vector<std::byte> all(10'000'000);
      ASSERT_TRUE((*w)->append(all));
      ASSERT_TRUE((*w)->finish());
      ++filled;
    });
  }
  for (std::thread& f : fillers) f.join();
  std::uint64_t bytes = 0;
  for (const cache_entry& e : cache_folder(how).entries()) bytes += e.bytes;
  EXPECT_LE(bytes, how.most_bytes) << filled;
}

TEST_F(CachedDigest, WhatIsBeingFilledCountsInFull) {
  auto how = cache();
  how.most_bytes = 15'000'000;
  const cache_folder folder(how);
  std::vector<std::unique_ptr<cache_writer>> writers;
  for (int i = 0; i < 3; ++i) {
    const std::string url = "http://host/" + std::to_string(i);
    const object_version version{.total = 10'000'000, .etag = "\"x\"", .last_modified = {}};
    auto w = folder.fill(cache_name(url, version), url, version);
    EXPECT_EQ(w.has_value(), i == 0);
    if (w) writers.push_back(std::move(*w));
  }
  EXPECT_EQ(folder.entries().size(), 1U);
}

// The filler's own program keeps all of the memory that the filler needs: readers do not wait for
// it, though it is alive.
TEST_F(CachedDigest, AFillerThatHasNoMemoryIsPassedBy) {
  from_->stop_at = 1'000'000;
  std::vector<buffer> held;
  before_reading = [&](memory_share& memory) { held.push_back(memory.try_acquire(64_MiB)); };
  steady_timer later(threads_.io(0).executor(), 800ms);
  asio::post(threads_.io(0).context(), [&] {
    later.async_wait([&](boost::system::error_code) {
      held.clear();
      from_->stop_at = ~std::uint64_t{0};
    });
  });
  EXPECT_EQ(read(cache(100ms), {1'200'000, 1'300'000}),
            (std::vector{from_->content.substr(1'200'000), from_->content.substr(1'300'000)}));
  EXPECT_NE(said().find("has given no sign of life"), std::string::npos) << said();
}

}  // namespace
}  // namespace millrace
