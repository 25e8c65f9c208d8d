#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/threads/io_thread.h"
#include "io/cache/seen_versions.h"
#include "tests/support/cached_object.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::object_url;

using Cache = testing::cache_test;

TEST(CanonicalUrl, LeavesOutWhatSignsASignedUrlAlone) {
  const auto same = [](const std::string& url, const std::string& as) {
    EXPECT_EQ(canonical_url(url), as);
  };
  same("http://u:p@h/a?v=1", "http://h/a?v=1");
  for (const char* plain : {"http://h/d?st=train", "http://h/d?st=val&se=2", "http://h/d?sig=1",
                            "http://h/d?Policy=x&Expires=1", "http://h/d?X-Amz-Date=1",
                            "http://h/d?Signature=1", "http://h/d?x-goog-date=1", "http://h/d?",
                            "s3://bucket/key?st=1&sig=2&sv=3", "/nas/a?sig=1&sv=2"}) {
    same(plain, plain);
  }
  same("https://h/a?X-Amz-Date=1&versionId=7&X-Amz-Signature=f&x-amz-meta=1",
       "https://h/a?versionId=7");
  same("https://h/a?X-Goog-Signature=f&X-Goog-Date=1", "https://h/a");
  same("https://h/a?sv=1&st=2&se=3&sp=r&sig=s&v=4", "https://h/a?v=4");
  same("https://h/a?Expires=1&Signature=s&Key-Pair-Id=k&v=1", "https://h/a?v=1");
  same("https://h/a?AWSAccessKeyId=i&Signature=s&Expires=1", "https://h/a");
  EXPECT_NE(cache_name("http://h/d?st=train", {}), cache_name("http://h/d?st=val", {}));
}

TEST_F(Cache, IsFilledOnceAndReadBack) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(read(cache(), {0, 1'234'567}),
              (std::vector{from_->content, from_->content.substr(1'234'567)}));
  }
  EXPECT_EQ(from_->opened, 1);
}

// A change of the object with the same size makes another entry.
TEST_F(Cache, AChangedObjectIsReadAnew) {
  read();
  int opened = 1;
  const auto changes = [&](const char* what) {
    std::ranges::reverse(from_->content);
    EXPECT_TRUE(read() == from_->content) << what;
    EXPECT_TRUE(read() == from_->content) << what;
    EXPECT_EQ(from_->opened, ++opened) << what;
  };
  from_->version.etag = "\"v2\"";
  changes("the ETag");
  from_->version.etag.reset();
  from_->version.last_modified = "Mon, 16 Nov 2026 10:00:00 GMT";
  changes("the time in place of an ETag");
  from_->version.last_modified = "Mon, 16 Nov 2026 10:00:01 GMT";
  changes("the time");
}

TEST_F(Cache, ReadersFollowWhatIsKnownToBeRight) {
  const auto w = writer();
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(writer(), nullptr);  // one at a time
  const cache_folder folder(cache());
  const auto part = folder.open_part(cache_name(object_url, from_->version)).value();
  EXPECT_TRUE(part->look().filling);
  EXPECT_EQ(part->look().there, 0U);
  ASSERT_TRUE(w->append(content(0, 1'500'000)));
  EXPECT_EQ(part->look().there, 1'500'000U);
  EXPECT_EQ(part->completed(), nullptr);
  ASSERT_TRUE(w->append(content(1'500'000, 1'000'000)));
  ASSERT_TRUE(w->finish());
  EXPECT_NE(part->completed(), nullptr);
}

// Bytes left by a crash are not given out before they have been compared with their sums, even
// though their file already exists.
TEST_F(Cache, WhatACrashLeftIsHeldBackUntilItIsChecked) {
  {
    const auto w = writer();
    ASSERT_TRUE(w->append(content(0, 2'300'000)));
  }
  {
    std::fstream part(path(".part"), std::ios::in | std::ios::out | std::ios::binary);
    part.seekp(cache_block_bytes + 10);
    part << "not what was written";
  }
  const held_file again(::open(path(".part").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(lock_file(again.fd(), F_WRLCK));  // a filler that has checked nothing yet
  const cache_folder folder(cache());
  EXPECT_EQ(folder.open_part(cache_name(object_url, from_->version)).value()->look().there, 0U);
  // Two readers at other offsets, held back until their patience ends; then they ask the origin.
  EXPECT_EQ(read(cache(100ms), {0, 1'100'000}),
            (std::vector{from_->content, from_->content.substr(1'100'000)}));
  EXPECT_NE(said().find("has given no sign of life for 0.1 s"), std::string::npos) << said();
  ASSERT_TRUE(lock_file(again.fd(), F_UNLCK));
  const auto w = writer();
  EXPECT_EQ(w->size(), cache_block_bytes);  // the block that is unchanged
  EXPECT_EQ(folder.open_part(cache_name(object_url, from_->version)).value()->look().there,
            cache_block_bytes);
}

TEST_F(Cache, TakesUpWhatADeadWriterLeft) {
  {
    const auto w = writer();
    ASSERT_TRUE(w->append(content(0, 2'300'000)));
  }
  EXPECT_EQ(read(cache(), {0, 2'200'000}),
            (std::vector{from_->content, from_->content.substr(2'200'000)}));
  EXPECT_EQ(from_->opened, 1);
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(from_->opened, 1);
}

TEST_F(Cache, AFillerWhoseOriginIsSlowIsNotTakenForAStoppedOne) {
  from_->stop_at = 1'000'000;
  steady_timer later(threads_.io(0).executor(), 600ms);
  asio::post(threads_.io(0).context(), [&] {
    later.async_wait([this](boost::system::error_code) { from_->stop_at = ~std::uint64_t{0}; });
  });
  EXPECT_EQ(read(cache(100ms), {0, 1'200'000}),
            (std::vector{from_->content, from_->content.substr(1'200'000)}));
  EXPECT_EQ(from_->opened, 1);
  EXPECT_EQ(said().find("no sign"), std::string::npos) << said();
}

// A complete entry can be read with any chunk size in the least memory that is asked for: the
// reader of a block never waits for memory that it keeps itself. With less memory it fails, and
// does not wait.
TEST_F(Cache, ReadsInTheLeastMemory) {
  read();
  for (const std::size_t chunk :
       {16_KiB, 64_KiB, 100'000UL, 256_KiB, 300'000UL, 768_KiB, 1_MiB, 1'500'000UL, 2_MiB, 3_MiB}) {
    options_.chunk_bytes = chunk;
    for (const int ahead : {1, 8}) {
      options_.read_ahead = ahead;
      const auto need = with_cache({.least = 2 * chunk, .most = 2 * chunk}, options_);
      for (const std::uint64_t at : {0U, 1'048'575U, 1'048'577U}) {
        EXPECT_EQ(read(at, need.least), from_->content.substr(at)) << chunk << " " << ahead;
      }
    }
  }
  options_.chunk_bytes = 64_KiB;
  EXPECT_NE(read(0, 1_MiB - 64_KiB).find("a block of the cache keeps 960.0 KiB"),
            std::string::npos);
  EXPECT_EQ(from_->opened, 1);
}

TEST_F(Cache, WithoutAVersionNothingIsKeptOrUsed) {
  from_->version.etag.reset();
  {
    const std::string wrong(2'500'000, 'x');
    const auto w = writer();  // of a program that kept such an entry
    ASSERT_TRUE(w->append(std::as_bytes(std::span(wrong))));
    ASSERT_TRUE(w->finish());
  }
  remember_version(folder_ / "c", object_url, from_->version);
  EXPECT_FALSE(remembered_version(folder_ / "c", object_url));
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(from_->opened, 1);
  EXPECT_EQ(files().size(), 1U);
  EXPECT_NE(said().find("gives no version"), std::string::npos);
}

TEST_F(Cache, AnyBytesAreAVersion) {
  from_->version.etag = "\"v\xe9\xff\n\"";
  const std::string url = "/caf\xe9/a.tar";
  remember_version(folder_ / "c", url, from_->version);
  EXPECT_EQ(remembered_version(folder_ / "c", url)->etag, from_->version.etag);
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(from_->opened, 1);
}

// How many descriptors of this process are of entries in `folder` that are being filled.
int open_parts(const std::filesystem::path& folder) {
  int found = 0;
  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto file = std::filesystem::read_symlink(descriptor, gone);
    if (file.parent_path() == folder && file.extension() == ".part") ++found;
  }
  return found;
}

// Removes the folder once a second reader follows what is filled, and lets the origin go on.
awaitable<void> remove_once_followed(testing::origin* from, std::filesystem::path folder) {
  constexpr int of_both = 3;  // the writer's, and each reader's
  while (open_parts(folder) < of_both) {
    steady_timer soon(co_await this_executor, 1ms);
    co_await soon.async_wait(no_throw);
  }
  std::filesystem::remove_all(folder);
  from->stop_at = ~std::uint64_t{0};
}

TEST_F(Cache, AFolderThatGoesIsMadeAgainOnceAndFollowedToItsEnd) {
  from_->stop_at = 1'100'000;
  auto removed =
      spawn_on(threads_.io(0).executor(), remove_once_followed(from_.get(), folder_ / "c"));
  const std::vector expected{from_->content, from_->content.substr(2'000'000)};
  EXPECT_EQ(read(cache(), {0, 2'000'000}), expected);
  removed.get();
  EXPECT_EQ(from_->opened, 1);  // the other reader followed the file that has lost its name
  EXPECT_NE(said().find("creating it again"), std::string::npos) << said();
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(from_->opened, 2);
}

TEST_F(Cache, WhatOthersPutIntoTheFolderIsNotUsed) {
  const std::string wrong(2'500'000, 'x');
  {
    const auto w = writer();
    ASSERT_TRUE(w->append(std::as_bytes(std::span(wrong))));
    ASSERT_TRUE(w->finish());
  }
  ASSERT_EQ(chmod(path().c_str(), 0666), 0);  // any user may have written it
  EXPECT_EQ(read(), from_->content);
  std::filesystem::remove(path());
  const auto victim = folder_.write("victim", "keep me");
  ASSERT_EQ(symlink(victim.c_str(), path(".part").c_str()), 0);
  ASSERT_EQ(symlink(victim.c_str(), path(".sums").c_str()), 0);
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(std::filesystem::file_size(victim), 7U);
  // A folder that others may write to is not used at all.
  ASSERT_EQ(chmod((folder_ / "c").c_str(), 0770), 0);
  EXPECT_EQ(cache_folder(cache()).check().error().kind(), errc::not_allowed);
  EXPECT_EQ(read(), from_->content);
  EXPECT_NE(said().find("other users may write"), std::string::npos);
}

TEST_F(Cache, ADamagedEntryIsRemovedButNotTheOneThatCameInItsPlace) {
  read();
  const cache_folder folder(cache());
  const std::string name = cache_name(object_url, from_->version);
  const auto old = folder.open(name);
  std::filesystem::remove(path());
  read();
  folder.remove(name, *old);
  EXPECT_TRUE(std::filesystem::exists(path()));
  folder.remove(name, *folder.open(name));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(Cache, NothingIsRemovedForWhatDoesNotFit) {
  read();
  auto how = cache();
  how.most_bytes = 3'000'000;
  const cache_folder folder(how);
  for (const std::uint64_t huge :
       {std::uint64_t{4'000'000}, std::uint64_t{1} << 50, ~std::uint64_t{0}}) {
    const object_version version{.total = huge, .etag = "\"huge\"", .last_modified = {}};
    for (const auto& with : {folder, cache_folder(cache())}) {
      if (&with != &folder && huge < 1'000'000'000) continue;
      const auto got = with.fill(cache_name("http://h/huge", version), "http://h/huge", version);
      ASSERT_FALSE(got) << huge;
      EXPECT_EQ(got.error().kind(), errc::too_large);
    }
  }
  EXPECT_TRUE(std::filesystem::exists(path()));
  // An object that fits replaces the least recently used one.
  const object_version small{.total = 1'000'000, .etag = "\"small\"", .last_modified = {}};
  EXPECT_TRUE(folder.fill(cache_name("http://h/small", small), "http://h/small", small));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(Cache, FilesOfOtherProgramsStayWhateverTheirNames) {
  read();
  const std::string name(64, 'a');
  std::vector<std::string> others;
  for (const char* ending : {"", ".part", ".sums", ".seen", ".seen.17.1"}) {
    others.push_back(folder_.write("c/" + name + ending, "{\"blob\": \"of another program\"}"));
  }
  ASSERT_EQ(chmod(others.front().c_str(), 0666), 0);
  others.push_back(folder_ / ("c/" + std::string(64, 'b')));
  ASSERT_EQ(symlink(others.front().c_str(), others.back().c_str()), 0);
  others.push_back(folder_.write("c/" + std::string(64, 'c') + ".sums", "of no part"));
  auto how = cache();
  how.most_bytes = 3'000'000;
  const cache_folder folder(how);
  for (const cache_entry& entry : folder.entries()) {
    folder.look_at(entry.name);
    folder.open(entry.name);
    folder.remove_damaged(entry.name);
  }
  const object_version next{.total = 2'900'000, .etag = "\"v2\"", .last_modified = {}};
  EXPECT_TRUE(folder.fill(cache_name("http://h/b", next), "http://h/b", next));
  EXPECT_FALSE(std::filesystem::exists(path()));  // there was no room for both
  how.most_bytes = 1;
  cache_folder(how).evict();
  cache_folder(how).clean();
  EXPECT_EQ(files().size(), others.size());
  for (const std::string& other : others) {
    EXPECT_TRUE(std::filesystem::is_symlink(other) || std::filesystem::file_size(other) > 9)
        << other;
  }
}

TEST_F(Cache, LookingAtADamagedEntryLeavesIt) {
  read();
  const cache_folder folder(cache());
  const std::string name = cache_name(object_url, from_->version);
  const auto size = std::filesystem::file_size(path());
  EXPECT_FALSE(folder.remove_damaged(name));  // it is complete
  {
    std::fstream entry(path(), std::ios::in | std::ios::out | std::ios::binary);
    entry.seekp(static_cast<std::streamoff>(size) - 20);
    entry << '\0';
  }
  EXPECT_EQ(folder.look_at(name), nullptr);
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_TRUE(folder.remove_damaged(name));
  EXPECT_FALSE(std::filesystem::exists(path()));
  // A truncated entry has no mark any more: it stays until its object is fetched again.
  read();
  std::filesystem::resize_file(path(), size - 5);
  EXPECT_FALSE(folder.remove_damaged(name));
  EXPECT_EQ(folder.open(name), nullptr);
  EXPECT_TRUE(std::filesystem::exists(path()));
  EXPECT_EQ(read(), from_->content);
  EXPECT_EQ(std::filesystem::file_size(path()), size);
}

TEST_F(Cache, CleanLeavesNothing) {
  read();
  {
    const object_version next{.total = 2'000'000, .etag = "\"v2\"", .last_modified = {}};
    ASSERT_TRUE(cache_folder(cache()).fill(cache_name("http://h/b", next), "http://h/b", next));
  }
  folder_.write("c/" + std::string(64, 'a') + ".sums", std::string(cache_mark) + "sums");
  folder_.write("c/" + std::string(64, 'b') + ".seen.17.1", "{\"bytes\":17,\"ent");
  EXPECT_EQ(files().size(), 6U);  // including the entry and the version that was seen
  cache_folder(cache()).clean();
  EXPECT_TRUE(files().empty()) << files().front();
  read();
  auto how = cache();
  how.most_bytes = 1;
  cache_folder(how).evict();
  EXPECT_TRUE(files().empty()) << files().front();  // a version is removed with its entry
}

}  // namespace
}  // namespace millrace
