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
  EXPECT_TRUE(parse_content_range("Bytes 0-9/10"));
  for (const char* wrong :
       {"", "bytes", "bytes */10", "bytes 5-4/10", "bytes 0-10/10", "bytes 0-/9", "bytes 0-1/10 ",
        "bytes 0-1", "items 0-1/10", "bytes 0-99999999999999999999/*"}) {
    EXPECT_FALSE(parse_content_range(wrong)) << wrong;
  }
}

TEST(ContentRange, OfARefusalIsTheLength) {
  const auto told = [](const char* range) {
    return length_told({.status = 416, .content_length = {}, .fields = {{"Content-Range", range}}});
  };
  EXPECT_EQ(told("bytes */10"), 10U);
  EXPECT_EQ(told("BYTES */0"), 0U);
  EXPECT_EQ(told("bytes 0-1/10"), std::nullopt);
}

TEST(ToldInErrors, ACodeIsLettersUpToTheFirstOtherCharacter) {
  const auto code = [](const std::string& text) {
    return error_code_in("<Error><Code>" + text + "</Code></Error>");
  };
  EXPECT_EQ(code("AccessDenied"), "AccessDenied");
  EXPECT_EQ(code("Invalid.Digest"), "Invalid.Digest");
  EXPECT_EQ(code("echo?sig=SECRET"), "echo");
  EXPECT_EQ(code("/echo?sig=SECRET"), "");
  EXPECT_EQ(code(""), "");
  EXPECT_EQ(code(std::string(100, 'x')), std::string(60, 'x'));
  EXPECT_EQ(error_code_in("<Code>Half"), "");
  EXPECT_EQ(error_code_in("</Code><Code>"), "");
}

TEST(ToldInErrors, ValuesThatAServerSendsAreOfTheirForm) {
  const auto range = [](http_fields fields) {
    return told_range({.status = 206, .content_length = {}, .fields = std::move(fields)});
  };
  EXPECT_EQ(range({{"Content-Range", "bytes 5-9/20"}}), "bytes 5-9/20");
  EXPECT_EQ(range({{"Content-Range", "bytes 5-9/*"}}), "bytes 5-9/*");
  EXPECT_EQ(range({{"Content-Range", "bytes 5-9/?sig=S"}}), "an invalid Content-Range");
  EXPECT_EQ(range({{"Content-Type", "multipart/byteranges; boundary=S"}}),
            "several parts, multipart");
  EXPECT_EQ(range({{"Content-Type", "?sig=S"}}), "no Content-Range");
  const auto told = [](http_fields fields) {
    return unwanted_encoding({.status = 200, .content_length = {}, .fields = std::move(fields)});
  };
  EXPECT_EQ(told({{"content-encoding", "gzip"}}), "Content-Encoding 'gzip'");
  EXPECT_EQ(told({{"Content-Encoding", "?sig=S"}}), "an unknown Content-Encoding");
  EXPECT_EQ(told({{"Content-Encoding", "identity"}, {"Content-Encoding", "br"}}),
            "Content-Encoding 'br'");
  EXPECT_EQ(told({{"Transfer-Encoding", "gzip, Chunked"}}), "Transfer-Encoding 'gzip'");
  EXPECT_EQ(told({{"Transfer-Encoding", "chunked"}, {"Content-Encoding", " , Identity"}}),
            std::nullopt);
  EXPECT_EQ(told({{"Content-Encoding", "aws-chunked"}, {"Content-Encoding", "None"}}),
            std::nullopt);
  EXPECT_EQ(told({{"Content-Encoding", "aws-chunked,gzip"}}), "Content-Encoding 'gzip'");
  EXPECT_EQ(told({{"Transfer-Encoding", "aws-chunked"}}), "an unknown Transfer-Encoding");
  EXPECT_EQ(told_region("eu-west-1"), "eu-west-1");
  EXPECT_EQ(told_region("?sig=s"), std::nullopt);
  EXPECT_EQ(told_region(""), std::nullopt);
}

}  // namespace
}  // namespace millrace
