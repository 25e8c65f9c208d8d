// A scan opens a shard again after a large file, and it must still be the same shard.
#include "pipeline/formats/scan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "millrace/millrace.h"
#include "tests/support/shard_server.h"
#include "tests/support/tar_builder.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

// With this many requests, something is wrong.
constexpr int all_answers = 20;

// Two versions of the same length, with a large file at the same place: what follows would fit
// both.
std::string shard_with_large_file(bool second) {
  testing::tar_builder shard;
  const std::string small(512, 's');
  shard.file(second ? "b.txt" : "a.txt", small);
  shard.file(second ? "b.bin" : "a.bin", std::string(16 << 20, second ? 'B' : 'A'));
  for (int i = 0; i < 3; ++i) {
    shard.file(std::string(second ? "y" : "x") + std::to_string(i) + ".txt", small);
  }
  return shard.end().str();
}

class Scan : public ::testing::Test {
 protected:
  // `replace` is called once the first header has been read.
  shard_facts scanned(const std::string& url, const std::function<void()>& replace,
                      const std::string& cache = "") {
    engine_options options{.cpu_threads = 1};
    options.source.http.attempts = 2;
    options.source.http.backoff = 1ms;
    options.source.http.split = 1;
    options.source.cache.folder = cache;
    engine eng(options);
    bool is_first = true;
    auto found = eng.run(scan({url}, {.md5 = false, .wants = [&](std::string_view /*extension*/) {
                                        if (std::exchange(is_first, false)) replace();
                                        return false;
                                      }}));
    return *found.next();
  }
  static void expect_changed(const shard_facts& facts) {
    ASSERT_EQ(facts.problems.size(), 1U);
    EXPECT_EQ(facts.problems.front().kind(), errc::changed) << facts.problems.front().message();
    EXPECT_LE(facts.samples.size(), 1U);
  }

  testing::temporary_folder folder_;
  const std::string before_ = shard_with_large_file(false);
  const std::string after_ = shard_with_large_file(true);
};

TEST_F(Scan, AFileThatIsReplacedWhileItIsReadIsAnError) {
  const std::string path = folder_.write("a.tar", before_);
  EXPECT_EQ(scanned(path, [] {}).samples.size(), 4U);
  const std::string other = folder_.write("b.tar", after_);
  expect_changed(scanned(path, [&] { std::filesystem::rename(other, path); }));
}

TEST_F(Scan, SoIsAnObjectAlsoThroughTheCache) {
  for (const bool cached : {false, true}) {
    SCOPED_TRACE(cached);
    testing::shard_server server;
    server.put("/a.tar", before_);
    const std::string cache = cached ? folder_ / "cache" : "";
    EXPECT_EQ(scanned(server.url("/a.tar"), [] {}, cache).samples.size(), 4U);
    const auto replace = [&] {
      server.put("/a.tar", after_);
      for (int i = 0; i < 10; ++i) server.fail_next("/a.tar", {.etag = "\"v2\""});
    };
    expect_changed(scanned(server.url("/a.tar"), replace, cache));
  }
}

// Nothing would show that the data after the large file are of another version.
TEST_F(Scan, AnObjectWithoutAVersionIsReadInOne) {
  testing::shard_server server;
  server.put("/a.tar", before_);
  for (int i = 0; i < all_answers; ++i) server.fail_next("/a.tar", {.etag = ""});
  const shard_facts facts = scanned(server.url("/a.tar"), [&] { server.put("/a.tar", after_); });
  EXPECT_TRUE(facts.problems.empty());
  EXPECT_EQ(facts.samples.size(), 4U);
  EXPECT_EQ(server.requests().size(), 1U);
}

// Only what a GET would return is used of the response to a HEAD.
TEST_F(Scan, AnObjectIsReadThroughTheCacheWhateverAHeadSays) {
  const std::vector<std::vector<testing::fault>> heads = {{{.status = 404}},
                                                          {{.etag = "W/\"v1\""}}};
  for (std::size_t i = 0; i < heads.size(); ++i) {
    SCOPED_TRACE(i);
    testing::shard_server server;
    server.put("/a.tar", before_);
    for (const auto& f : heads[i]) server.fail_next("/a.tar", f);
    const std::string folder = folder_ / ("cache" + std::to_string(i));
    const shard_facts facts = scanned(server.url("/a.tar"), [] {}, folder);
    EXPECT_TRUE(facts.problems.empty()) << facts.problems.front().message();
    EXPECT_EQ(facts.samples.size(), 4U);
  }
}

// Each such request costs as much as everything before the part.
TEST_F(Scan, AServerWithoutRangesIsAskedForAPartOnce) {
  testing::shard_server server;
  testing::tar_builder shard;
  for (int i = 0; i < 4; ++i) {
    shard.file(std::to_string(i) + ".bin", std::string(9 << 20, 'x'));
  }
  server.put("/a.tar", shard.end().str());
  for (int i = 0; i < all_answers; ++i) server.fail_next("/a.tar", {.ignore_range = true});
  const shard_facts facts = scanned(server.url("/a.tar"), [] {});
  EXPECT_TRUE(facts.problems.empty());
  EXPECT_EQ(facts.samples.size(), 4U);
  EXPECT_EQ(server.requests().size(), 2U);
}

}  // namespace
}  // namespace millrace
