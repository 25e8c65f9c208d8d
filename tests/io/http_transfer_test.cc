#include "io/http_transfer.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using namespace std::chrono_literals;
using take_body = http_transfer::take_body;
using ask_again = http_transfer::ask_again;
using finished = http_transfer::finished;

response_head whole(std::uint64_t length, std::string etag = "\"v1\"") {
  return {.status = 200, .content_length = length, .etag = std::move(etag)};
}
response_head part(std::string range, std::uint64_t length, std::string etag = "\"v1\"") {
  return {.status = 206,
          .content_length = length,
          .content_range = std::move(range),
          .etag = std::move(etag)};
}
response_head status(int code) {
  return {.status = code};
}

errc kind_of(const http_transfer::action& a) {
  const auto* e = std::get_if<error>(&a);
  return e != nullptr ? e->kind() : errc::internal;
}
template <class T>
bool is(const http_transfer::action& a) {
  return std::holds_alternative<T>(a);
}

class HttpTransfer : public ::testing::Test {
 protected:
  http_transfer transfer_at(std::uint64_t offset) {
    return {parse_url("http://h/a.tar").value(), offset, {.attempts = 3, .first_pause = 100ms}, 1};
  }
  http_transfer t_ = transfer_at(0);
};

TEST_F(HttpTransfer, AWholeObject) {
  EXPECT_FALSE(t_.range());
  EXPECT_TRUE(is<take_body>(t_.on_head(whole(100))));
  EXPECT_EQ(t_.on_body(100), 0U);
  EXPECT_TRUE(is<finished>(t_.on_end()));
}

TEST_F(HttpTransfer, ACutBodyIsAskedForFromTheByteOn) {
  t_.on_head(whole(100));
  t_.on_body(60);
  EXPECT_TRUE(is<ask_again>(t_.on_end()));  // 40 bytes are missing
  EXPECT_EQ(t_.range(), "bytes=60-");
  EXPECT_EQ(t_.if_range(), "\"v1\"");
  EXPECT_TRUE(is<take_body>(t_.on_head(part("bytes 60-99/100", 40))));
  EXPECT_EQ(t_.on_body(40), 0U);
  EXPECT_TRUE(is<finished>(t_.on_end()));
}

TEST_F(HttpTransfer, AServerWithoutRangesSendsTheFrontAgainWhichIsLeftOut) {
  t_.on_head(whole(100));
  t_.on_body(60);
  t_.on_end();
  EXPECT_TRUE(is<take_body>(t_.on_head(whole(100))));
  EXPECT_EQ(t_.on_body(50), 50U);
  EXPECT_EQ(t_.on_body(50), 10U);
  EXPECT_TRUE(is<finished>(t_.on_end()));
}

TEST_F(HttpTransfer, NeverMixesTwoVersions) {
  t_.on_head(whole(100));
  t_.on_body(60);
  t_.on_end();
  http_transfer other = t_;
  EXPECT_EQ(kind_of(t_.on_head(whole(100, "\"v2\""))), errc::changed);
  EXPECT_EQ(kind_of(other.on_head(part("bytes 60-119/120", 60, "\"v1\""))), errc::changed);
}

TEST_F(HttpTransfer, AWeakTagIsNotUsedForIfRange) {
  response_head head = whole(100, "W/\"v1\"");
  head.last_modified = "Sat, 01 Jan 2022 00:00:00 GMT";
  t_.on_head(head);
  t_.on_body(10);
  t_.on_end();
  EXPECT_EQ(t_.if_range(), head.last_modified);
}

TEST_F(HttpTransfer, APartThatWasNotAskedForIsRefused) {
  t_.on_head(whole(100));
  t_.on_body(60);
  t_.on_end();
  EXPECT_EQ(kind_of(t_.on_head(part("bytes 61-99/100", 39))), errc::protocol);
  EXPECT_EQ(kind_of(t_.on_head(status(206))), errc::protocol);
}

TEST_F(HttpTransfer, RetriesTransientAnswersAndGivesUpAfterSoMany) {
  EXPECT_TRUE(is<ask_again>(t_.on_head(status(503))));
  EXPECT_TRUE(is<ask_again>(t_.on_head(status(429))));
  const auto last = t_.on_head(status(503));
  EXPECT_EQ(kind_of(last), errc::http_status);
  EXPECT_NE(std::get<error>(last).message().find("attempt 3 of 3"), std::string::npos);
}

TEST_F(HttpTransfer, AByteGainedStartsTheCountAnew) {
  for (int i = 0; i < 10; ++i) {
    t_.on_head(i == 0 ? whole(100) : part("bytes " + std::to_string(i) + "-99/100", 100));
    t_.on_body(1);
    EXPECT_TRUE(is<ask_again>(t_.on_failure(error(errc::cut, "cut"))));
  }
}

TEST_F(HttpTransfer, WhatIsNotThereFailsAtOnce) {
  EXPECT_EQ(kind_of(t_.on_head(status(404))), errc::not_found);
  EXPECT_EQ(kind_of(t_.on_head(status(403))), errc::not_allowed);
  EXPECT_EQ(kind_of(t_.on_head(status(400))), errc::http_status);
}

TEST_F(HttpTransfer, FollowsRedirectsToHttpOnlyAndNotForEver) {
  response_head to = status(302);
  to.location = "/b.tar";
  EXPECT_TRUE(is<ask_again>(t_.on_head(to)));
  EXPECT_EQ(t_.target().path, "/b.tar");
  to.location = "file:///etc/passwd";
  EXPECT_EQ(kind_of(t_.on_head(to)), errc::protocol);
  to.location = "/c.tar";
  http_transfer::action last = finished{};
  for (int i = 0; i < 6; ++i) last = t_.on_head(to);
  EXPECT_EQ(kind_of(last), errc::protocol);
}

TEST_F(HttpTransfer, RefusesAnEncodingThatNobodyAskedFor) {
  response_head head = whole(100);
  head.content_encoding = "gzip";
  EXPECT_EQ(kind_of(t_.on_head(head)), errc::protocol);
}

TEST_F(HttpTransfer, StartsInTheMiddleWhenResumed) {
  http_transfer t = transfer_at(512);
  EXPECT_EQ(t.range(), "bytes=512-");
  EXPECT_FALSE(t.if_range());
  EXPECT_TRUE(is<take_body>(t.on_head(part("bytes 512-1023/1024", 512))));
}

TEST_F(HttpTransfer, ObeysRetryAfterUpToAMinute) {
  response_head busy = status(503);
  busy.retry_after = "7";
  EXPECT_GE(std::get<ask_again>(t_.on_head(busy)).pause, 7s);
  busy.retry_after = "100000";
  EXPECT_LE(std::get<ask_again>(t_.on_head(busy)).pause, 60s);
}

TEST(RetryAfter, SecondsAndDates) {
  EXPECT_EQ(parse_retry_after("120", 0), 120s);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 10), 50s);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 100), 0s);
  EXPECT_FALSE(parse_retry_after("soon", 0));
}

}  // namespace
}  // namespace millrace
