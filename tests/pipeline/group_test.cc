#include "pipeline/formats/group.h"
#include "pipeline/samples/sample_name.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

struct name_case {
  const char* name;
  const char* key;  // null: left out
  const char* extension;
};

// Observed with webdataset 1.0.2.
TEST(SplitName, AsWebDatasetDoes) {
  const name_case cases[] = {
      {"a.jpg", "a", "jpg"},
      {"a", nullptr, ""},
      {"a.", "a", ""},
      {"a/b.c.d.jpg", "a/b", "c.d.jpg"},
      {"a.b/c.jpg", "a.b/c", "jpg"},
      {".hidden.jpg", nullptr, ""},
      {"dir/.hidden", "dir/", "hidden"},
      {"d.r/.hidden", nullptr, ""},
      {".h/.hidden", nullptr, ""},
      {"d.r/x/.hidden", "d.r/x/", "hidden"},
      {"/.hidden", "/", "hidden"},
      {"a\nb.jpg", "a\nb", "jpg"},
      {"a\nb/c.jpg", "a\nb/c", "jpg"},
      {"a.\nb/c.jpg", nullptr, ""},
      {"x/.a.b", "x/", "a.b"},
      {"a/b/.jpg", "a/b/", "jpg"},
      {"./a.jpg", "./a", "jpg"},
      {"../a.jpg", "../a", "jpg"},
      {"a.JPG", "a", "jpg"},
      {"a..jpg", "a", ".jpg"},
      {"2024.01.02/img.jpg", "2024.01.02/img", "jpg"},
      {"img 2.0 (x).mp3", "img 2", "0 (x).mp3"},
      {"__x__.json", "__x__", "json"},
      {"d/__x__.json", "d/__x__", "json"},
      {"/abs/a.jpg", "/abs/a", "jpg"},
  };
  for (const name_case& c : cases) {
    const auto split = split_name(c.name);
    ASSERT_EQ(split.has_value(), c.key != nullptr) << c.name;
    if (!split) continue;
    EXPECT_EQ(split->key, c.key) << c.name;
    EXPECT_EQ(split->extension, c.extension) << c.name;
    // Whether a member belongs to a key is decided without splitting its name.
    for (const name_case& other : cases) {
      const auto theirs = split_name(other.name);
      EXPECT_EQ(extension_after(split->key, other.name).has_value(),
                theirs && theirs->key == split->key)
          << other.name << " and " << split->key;
    }
  }
}

TEST(MetaName, AsWebDatasetDoes) {
  for (const char* left_out : {"__info__", "__x__/a.jpg", "____"})
    EXPECT_TRUE(is_meta_name(left_out));
  for (const char* kept : {"__meta__.json", "a/__x__", "__x", "__x_/a.jpg"}) {
    EXPECT_FALSE(is_meta_name(kept)) << kept;
  }
}

}  // namespace
}  // namespace millrace
