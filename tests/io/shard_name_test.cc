#include "io/names/shard_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "io/names/compression.h"

namespace millrace {
namespace {

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

TEST(ShardName, IsThatOfAnArchiveInAnyCompressionThatIsRead) {
  const std::vector<std::string> endings{".tar",    ".tgz",     ".tbz2",   ".txz",     ".tzst",
                                         ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4",
                                         ".tar.z",  ".tar.Z",   ".Tar.GZ"};
  const auto is_listed = [&](std::string_view ending) {
    return std::ranges::find(endings, ending) != endings.end();
  };
  for (const known_compression& c : known_compressions) {
    EXPECT_TRUE(is_listed(".tar" + std::string(c.ending))) << c.ending;
    if (!c.archive.empty()) EXPECT_TRUE(is_listed(c.archive)) << c.archive;
  }
  for (const std::string& ending : endings) {
    for (const std::string& written : {ending, upper(ending)}) {
      EXPECT_TRUE(is_shard_name("a" + written)) << written;
      EXPECT_TRUE(is_shard_name("sub/a.b" + written)) << written;
    }
  }
}

TEST(Compression, IsRecognisedByItsMagicAndItsEndings) {
  for (const known_compression& c : known_compressions) {
    const std::string ending(c.ending);
    EXPECT_EQ(compression_of(std::string(c.magic) + "and what follows"), c.how) << ending;
    EXPECT_EQ(compression_of(c.magic.substr(1)), compression::none) << ending;
    EXPECT_EQ(compression_named("a" + ending), c.how) << ending;
    EXPECT_EQ(compression_named("http://h/a" + upper(ending) + "?b=.c#d"), c.how) << ending;
    if (!c.archive.empty()) EXPECT_EQ(compression_named("a" + std::string(c.archive)), c.how);
    EXPECT_EQ(usual_window(c.how), c.window) << ending;
  }
  EXPECT_EQ(compression_of("a tar"), compression::none);
  EXPECT_EQ(compression_named("a.tar"), compression::none);
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
