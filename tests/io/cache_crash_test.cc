#include <gtest/gtest.h>

#include "engine/base/random.h"
#include "engine/host/seams.h"
#include "io/cache/cache_folder.h"
#include "io/cache/cache_writer.h"
#include "io/cache/cached_file.h"
#include "io/cache/entry_name.h"
#include "tests/support/memory_files.h"
#include "tests/support/numbered.h"
#include "tests/support/seeds.h"

namespace millrace {
namespace {

using testing::memory_files;

const std::string filled_url = "http://host/a.tar";
const std::string content = testing::numbered(cache_block_bytes + 300'000);
const object_version version{.total = content.size(), .etag = "\"v1\"", .last_modified = {}};
const std::string path = "/c/" + cache_name(filled_url, version);

// A disk whose host loses power after `calls` calls of the process that fills the cache.
class failing_host {
 public:
  failing_host(std::uint64_t seed, std::uint64_t calls) : disk(seed) {
    disk.put("/c/x", "");
    simulate_files(&disk);
    disk.fault = [this, calls](const char*, const std::string&) {
      if (made == calls) return -EIO;
      ++made;
      return 0;
    };
  }
  ~failing_host() { simulate_files(nullptr); }
  failing_host(const failing_host&) = delete;
  failing_host& operator=(const failing_host&) = delete;

  void lose_power() {
    disk.crash();
    disk.restart(0);
    disk.fault = nullptr;
  }

  memory_files disk;
  std::uint64_t made = 0;
};

// Returns whether the entry was completed.
bool fill() {
  auto filler = cache_writer::open(path, filled_url, version);
  if (!filler || *filler == nullptr) return false;
  const auto all = std::as_bytes(std::span(content)).subspan((*filler)->size());
  for (std::size_t at = 0; at < all.size(); at += 100'000) {
    const auto piece = all.subspan(at, std::min<std::size_t>(100'000, all.size() - at));
    if (!(*filler)->append(piece)) return false;
  }
  return static_cast<bool>((*filler)->finish());
}

TEST(CacheFailures, AnErrnoHasOneKind) {
  memory_files disk;
  simulate_files(&disk);
  const cache_folder folder({.folder = "/cache"});
  ASSERT_TRUE(folder.prepare());
  for (const int why : {ENOENT, EACCES, EROFS, EMFILE, ENOMEM, EIO}) {
    disk.fault = [&](const char*, const std::string&) { return -why; };
    EXPECT_EQ(folder.prepare().error().kind(), kind_of(why)) << why;
    EXPECT_EQ(folder.check().error().kind(), kind_of(why)) << why;
    EXPECT_EQ(cache_writer::open(path, filled_url, version).error().kind(), kind_of(why)) << why;
  }
  simulate_files(nullptr);
}

// Power is lost after every call of a filler; unsynced data may be lost, torn or reordered.
TEST(CacheCrash, AnEntryThatHasItsNameIsWhole) {
  const std::uint64_t seeds = testing::every() == 1 ? 8 : 2;
  bool is_complete = false;
  std::uint64_t named = 0;
  for (std::uint64_t calls = 1; !is_complete; ++calls) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      failing_host host(seed, calls);
      is_complete = fill() && host.made < calls;
      host.lose_power();
      const bool is_named = host.disk.exists(path);
      if (is_complete) ASSERT_TRUE(is_named) << seed;
      if (is_named) {
        ++named;
        ASSERT_TRUE(host.disk.content(path).starts_with(content)) << calls << " calls, " << seed;
        auto entry = open_own(path, O_RDONLY);
        ASSERT_TRUE(entry);
        ASSERT_NE(cached_file::of(std::move(*entry)), nullptr) << calls << " calls, " << seed;
        continue;
      }
      ASSERT_TRUE(fill()) << calls << " calls, " << seed;
      ASSERT_TRUE(host.disk.content(path).starts_with(content)) << calls << " calls, " << seed;
    }
  }
  EXPECT_GT(named, seeds);
}

}  // namespace
}  // namespace millrace
