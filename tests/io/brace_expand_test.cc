#include "io/names/brace_expand.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using strings = std::vector<std::string>;

strings expanded(std::string_view pattern) {
  return brace_expand(pattern).value();
}

// The behaviour of braceexpand 0.1.7 that WebDataset's users rely on.
TEST(BraceExpand, Ranges) {
  EXPECT_EQ(expanded("{000000..00009}").size(), 10U);
  EXPECT_EQ(expanded("{000000..00009}").back(), "000009");
  EXPECT_EQ(expanded("{01..10..3}"), (strings{"01", "04", "07", "10"}));
  EXPECT_EQ(expanded("{00..05..2}"), (strings{"00", "02", "04"}));
  EXPECT_EQ(expanded("{1..-2}"), (strings{"1", "0", "-1", "-2"}));
  EXPECT_EQ(expanded("{a..e}"), (strings{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(expanded("{c..a}"), (strings{"c", "b", "a"}));
  EXPECT_EQ(expanded("{3..3}"), (strings{"3"}));
  EXPECT_EQ(expanded("{-01..1}"), (strings{"-01", "000", "001"}));
  EXPECT_EQ(expanded("{1..3..0}"), (strings{"1", "2", "3"}));
}

TEST(BraceExpand, ListsAndNesting) {
  EXPECT_EQ(expanded("x{a,b}y"), (strings{"xay", "xby"}));
  EXPECT_EQ(expanded("{{a,b},c}"), (strings{"a", "b", "c"}));
  EXPECT_EQ(expanded("{a,}"), (strings{"a", ""}));
  EXPECT_EQ(expanded("{0..1}-{x,y}"), (strings{"0-x", "0-y", "1-x", "1-y"}));
  EXPECT_EQ(expanded(""), (strings{""}));
}

TEST(BraceExpand, WhatIsNoListStays) {
  EXPECT_EQ(expanded("a{b}c"), (strings{"a{b}c"}));
  EXPECT_EQ(expanded("a{}c"), (strings{"a{}c"}));
  EXPECT_EQ(expanded("a{b{0..1}}c"), (strings{"a{b0}c", "a{b1}c"}));
  EXPECT_EQ(expanded(R"(\{a,b\})"), (strings{"{a,b}"}));
}

TEST(BraceExpand, RefusesWhatDoesNotBalance) {
  for (const char* wrong : {"{a,b", "a,b}", "{a,{b}", "}{"}) {
    const auto out = brace_expand(wrong);
    ASSERT_FALSE(out) << wrong;
    EXPECT_EQ(out.error().kind(), errc::usage);
  }
}

TEST(BraceExpand, RefusesDepthThatTheStackHasNoRoomFor) {
  const auto nested = [](std::size_t depth, const char* within) {
    return std::string(depth, '{') + within + std::string(depth, '}');
  };
  for (const char* within : {"a", "a,b", "0..1"}) {
    EXPECT_TRUE(brace_expand(nested(64, within))) << within;
    for (const std::size_t depth : {65U, 60'000U, 1'000'000U}) {
      const auto out = brace_expand(nested(depth, within));
      ASSERT_FALSE(out) << depth;
      EXPECT_EQ(out.error().kind(), errc::usage);
    }
  }
  EXPECT_FALSE(brace_expand(std::string(100'000, '{')));
  EXPECT_FALSE(brace_expand(std::string(100'000, '}')));
}

TEST(BraceExpand, RefusesARangeThatDoesNotFitIntoMemory) {
  const auto out = brace_expand("{0..999999999999}");
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().kind(), errc::usage);
}

}  // namespace
}  // namespace millrace
