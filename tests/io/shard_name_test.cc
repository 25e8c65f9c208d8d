#include "io/names/shard_name.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

TEST(ShardName, IsThatOfAnArchiveInAnyCompressionThatIsRead) {
  for (const char* ending : {".tar", ".tgz", ".tbz2", ".txz", ".tzst", ".tar.gz", ".tar.bz2",
                             ".tar.xz", ".tar.zst", ".tar.lz4", ".tar.Z", ".TAR", ".Tar.GZ"}) {
    EXPECT_TRUE(is_shard_name(std::string("a") + ending)) << ending;
    EXPECT_TRUE(is_shard_name(std::string("sub/a.b") + ending)) << ending;
  }
}

TEST(ShardName, IsNotThatOfWhatLiesBesideShards) {
  for (const char* name : {"t-1.tar.partial.11549", "t-1.tar.gz.partial.7-1", "t-0.tar.md5",
                           "t-0.tar.idx", "a.tar.old", "a.gz", "tar", "notes.txt", ""}) {
    EXPECT_FALSE(is_shard_name(name)) << name;
  }
  for (const char* hidden : {".tar", "._t-0.tar", "sub/._t-0.tar", ".cache/t-0.tar"}) {
    EXPECT_FALSE(is_shard_name(hidden)) << hidden;
  }
}

TEST(Patterns, AStarStandsForAnyCharactersButASlash) {
  EXPECT_TRUE(matches_pattern("s3://b/a-12.tar", "s3://b/a-*.tar"));
  EXPECT_TRUE(matches_pattern("abcbc", "a*bc"));
  EXPECT_TRUE(matches_pattern("a", "a*"));
  EXPECT_TRUE(matches_pattern("x/a/y.tar", "x/*/*.tar"));
  EXPECT_FALSE(matches_pattern("s3://b/x/a.tar", "s3://b/*.tar"));
  EXPECT_FALSE(matches_pattern("a.tar.gz", "*.tar"));
}

TEST(Patterns, AStarStandsForNoHiddenNameAndNoPartialFile) {
  EXPECT_FALSE(matches_pattern("s3://b/._a.tar", "s3://b/*.tar"));
  EXPECT_FALSE(matches_pattern("s3://b/.old/a.tar", "s3://b/*/a.tar"));
  EXPECT_TRUE(matches_pattern("s3://b/.old/a.tar", "s3://b/.o*/a.tar"));
  EXPECT_TRUE(matches_pattern("s3://b/.old/a.tar", "s3://b/.old/*.tar"));
  EXPECT_FALSE(matches_pattern("s3://b/a.tar.partial.17", "s3://b/*"));
  EXPECT_TRUE(matches_pattern("s3://b/a.tar.partial.end", "s3://b/*"));
}

}  // namespace
}  // namespace millrace
