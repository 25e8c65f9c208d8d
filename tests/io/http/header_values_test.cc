#include "io/http/header_values.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using namespace std::chrono_literals;

TEST(RetryAfter, SecondsAndDates) {
  EXPECT_EQ(parse_retry_after("120", 0), 120s);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 10), 50s);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 100), 0s);
  EXPECT_FALSE(parse_retry_after("soon", 0));
}

TEST(ContentRange, IsWithinItsTotal) {
  const auto known = parse_content_range("bytes 100-199/1000");
  ASSERT_TRUE(known);
  EXPECT_EQ(known->first, 100U);
  EXPECT_EQ(known->last, 199U);
  EXPECT_EQ(known->total, 1000U);
  EXPECT_EQ(parse_content_range("bytes 0-0/*")->total, std::nullopt);
  for (const char* wrong :
       {"", "bytes", "bytes */10", "bytes 5-4/10", "bytes 0-10/10", "bytes 0-/9", "bytes 0-1/10 ",
        "bytes 0-1", "items 0-1/10", "bytes 0-99999999999999999999/*"}) {
    EXPECT_FALSE(parse_content_range(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace millrace
