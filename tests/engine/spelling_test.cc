#include "engine/base/spelling.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

TEST(Spelling, CountsWhatHasToBeChanged) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("lanes", "lanes"), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("pakc", "pack"), 1);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);
  EXPECT_EQ(edit_distance("--batchsize", "--batch-size"), 1);
}

TEST(Spelling, FindsTheNearestName) {
  const std::vector<std::string> known{"--lr", "--batch-size", "--val-batch-size", "--epochs"};
  EXPECT_EQ(nearest_of("--batchsize", known), "--batch-size");
  EXPECT_EQ(nearest_of("--epoch", known), "--epochs");
  EXPECT_EQ(nearest_of("--x", known), "--lr");
  EXPECT_EQ(nearest_of("--x", {}), "");
}

TEST(Spelling, NamesThatShareLessThanHalfAreNotMeant) {
  const std::vector<std::string> options{"--base", "--help"};
  EXPECT_EQ(near_of("--hlep", options, 2), "--help");
  EXPECT_EQ(near_of("--nope", options, 2), "");
  EXPECT_EQ(near_of("--nope", {}, 2), "");
  const std::vector<std::string> variables{"MILLRACE_IO", "MILLRACE_MEMORY"};
  EXPECT_EQ(near_of("MILLRACE_MEMROY", variables, 9), "MILLRACE_MEMORY");
  EXPECT_EQ(near_of("MILLRACE_FOO", variables, 9), "");
}

}  // namespace
}  // namespace millrace
