#include "io/http/transfer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using namespace std::chrono_literals;
using take_body = http_transfer::take_body;
using ask_again = http_transfer::ask_again;
using finished = http_transfer::finished;

response_head whole(std::uint64_t length, std::string etag = "\"v1\"") {
  return {.status = 200, .content_length = length, .fields = {{"ETag", std::move(etag)}}};
}
response_head part(std::string range, std::uint64_t length, std::string etag = "\"v1\"") {
  return {.status = 206,
          .content_length = length,
          .fields = {{"Content-Range", std::move(range)}, {"ETag", std::move(etag)}}};
}
response_head status(int code, http_fields fields = {}) {
  return {.status = code, .content_length = {}, .fields = std::move(fields)};
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
    return transfer_of("http://h/a.tar", {.begin = offset, .end = {}});
  }
  http_transfer transfer_of(const std::string& target, byte_range range,
                            object_version known = {}) {
    return {parse_url(target).value(),
            range,
            std::move(known),
            {.attempts = 3, .first_pause = 100ms},
            real_time(),
            1};
  }
  static std::optional<std::string> range(const http_transfer& t) {
    return find_field(t.request_fields(), "range");
  }
  static std::optional<std::string> if_range(const http_transfer& t) {
    return find_field(t.request_fields(), "if-range");
  }
  http_transfer t_ = transfer_at(0);
};

TEST_F(HttpTransfer, AWholeObject) {
  EXPECT_FALSE(range(t_));
  EXPECT_TRUE(is<take_body>(t_.on_head(whole(100))));
  EXPECT_EQ(t_.on_body(100), 0U);
  EXPECT_TRUE(is<finished>(t_.on_end()));
}

TEST_F(HttpTransfer, ACutBodyIsAskedForFromTheByteOn) {
  t_.on_head(whole(100));
  t_.on_body(60);
  EXPECT_TRUE(is<ask_again>(t_.on_end()));  // 40 bytes are missing
  EXPECT_EQ(range(t_), "bytes=60-");
  EXPECT_EQ(if_range(t_), "\"v1\"");
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
  const std::string modified = "Sat, 01 Jan 2022 00:00:00 GMT";
  head.fields.push_back({"Last-Modified", modified});
  t_.on_head(head);
  t_.on_body(10);
  t_.on_end();
  EXPECT_EQ(if_range(t_), modified);
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
  for (unsigned i = 0; i < 10; ++i) {
    t_.on_head(i == 0 ? whole(100) : part(fmt::format("bytes {}-99/100", i), 100U - i));
    t_.on_body(1);
    EXPECT_TRUE(is<ask_again>(t_.on_failure(error(errc::cut, "cut").retryable())));
  }
}

TEST_F(HttpTransfer, WhatIsNotThereFailsAtOnce) {
  EXPECT_EQ(kind_of(t_.on_head(status(404))), errc::not_found);
  EXPECT_EQ(kind_of(t_.on_head(status(403))), errc::not_allowed);
  EXPECT_EQ(kind_of(t_.on_head(status(400))), errc::http_status);
}

TEST_F(HttpTransfer, FollowsRedirectsToHttpOnlyAndNotForEver) {
  const auto to = [](const char* location) { return status(302, {{"Location", location}}); };
  EXPECT_TRUE(is<ask_again>(t_.on_head(to("/b.tar"))));
  EXPECT_EQ(t_.target().path, "/b.tar");
  EXPECT_EQ(kind_of(t_.on_head(to("file:///etc/passwd"))), errc::protocol);
  http_transfer::action last = finished{};
  for (int i = 0; i < 6; ++i) last = t_.on_head(to("/c.tar"));
  EXPECT_EQ(kind_of(last), errc::protocol);
}

TEST_F(HttpTransfer, RefusesAnEncodingThatNobodyAskedFor) {
  response_head head = whole(100);
  head.fields.push_back({"Content-Encoding", "gzip"});
  EXPECT_EQ(kind_of(t_.on_head(head)), errc::protocol);
}

TEST_F(HttpTransfer, StartsInTheMiddleWhenResumed) {
  http_transfer t = transfer_at(512);
  EXPECT_EQ(range(t), "bytes=512-");
  EXPECT_FALSE(if_range(t));
  EXPECT_TRUE(is<take_body>(t.on_head(part("bytes 512-1023/1024", 512))));
}

TEST_F(HttpTransfer, ObeysRetryAfterUpToAMinute) {
  const auto busy = [](const char* after) { return status(503, {{"Retry-After", after}}); };
  EXPECT_GE(std::get<ask_again>(t_.on_head(busy("7"))).pause, 7s);
  EXPECT_LE(std::get<ask_again>(t_.on_head(busy("100000"))).pause, 60s);
}

TEST_F(HttpTransfer, AConnectionThatDidItsWorkIsReplacedAtOnce) {
  t_.on_head(whole(1'000'000));
  t_.on_body(70'000);
  const auto again = std::get<ask_again>(t_.on_failure(error(errc::cut, "cut").retryable()));
  EXPECT_EQ(again.pause, 0ms);
  EXPECT_FALSE(again.is_retry);
  const auto second = std::get<ask_again>(t_.on_failure(error(errc::cut, "cut").retryable()));
  EXPECT_TRUE(second.is_retry);
}

TEST_F(HttpTransfer, WithoutAValidatorNothingIsResumed) {
  t_.on_head({.status = 200, .content_length = 100, .fields = {}});
  t_.on_body(60);
  const auto last = t_.on_end();
  EXPECT_EQ(kind_of(last), errc::cut);
  EXPECT_NE(std::get<error>(last).message().find("cannot be resumed"), std::string::npos);
}

TEST_F(HttpTransfer, APartEndsWhereItWasAskedTo) {
  http_transfer t = transfer_of("http://h/a.tar", {.begin = 100, .end = 200});
  EXPECT_EQ(range(t), "bytes=100-199");
  EXPECT_TRUE(is<take_body>(t.on_head(part("bytes 100-199/1000", 100))));
  EXPECT_EQ(t.version().total, 1000U);
  t.on_body(100);
  EXPECT_TRUE(is<finished>(t.on_end()));
}

TEST_F(HttpTransfer, APartThatComesShortIsAskedForTheRest) {
  http_transfer t = transfer_of("http://h/a.tar", {.begin = 100, .end = 200});
  EXPECT_TRUE(is<take_body>(t.on_head(part("bytes 100-149/1000", 50))));
  t.on_body(50);
  EXPECT_TRUE(is<ask_again>(t.on_end()));
  EXPECT_EQ(range(t), "bytes=150-199");
}

TEST_F(HttpTransfer, APartBehindTheEndIsCutToTheObject) {
  http_transfer t = transfer_of("http://h/a.tar", {.begin = 0, .end = 4096});
  EXPECT_TRUE(is<take_body>(t.on_head(part("bytes 0-999/1000", 1000))));
  t.on_body(1000);
  EXPECT_TRUE(is<finished>(t.on_end()));
  http_transfer empty = transfer_of("http://h/a.tar", {.begin = 0, .end = 4096});
  EXPECT_TRUE(is<finished>(empty.on_head(status(416, {{"Content-Range", "bytes */0"}}))));
}

TEST_F(HttpTransfer, AServerWithoutRangesGivesAllOfItToTheFirstPart) {
  http_transfer t = transfer_of("http://h/a.tar", {.begin = 0, .end = 4096});
  EXPECT_TRUE(is<take_body>(t.on_head(whole(10'000))));
  EXPECT_TRUE(t.ignores_ranges());
  EXPECT_EQ(t.end(), 10'000U);
}

TEST_F(HttpTransfer, PartsThatContradictTheirLengthOrTotalAreRefused) {
  const auto answer = [&](std::string text, std::uint64_t length) {
    http_transfer t = transfer_of("http://h/a.tar", {.begin = 100, .end = 200},
                                  {.total = 1000, .etag = "\"v1\"", .last_modified = {}});
    return kind_of(t.on_head(part(std::move(text), length)));
  };
  EXPECT_EQ(answer("bytes 100-199/1000", 99), errc::protocol);
  EXPECT_EQ(answer("bytes 100-299/1000", 200), errc::protocol);
  EXPECT_EQ(answer("bytes 100-199/2000", 100), errc::changed);
}

TEST_F(HttpTransfer, SecretsStayAtHome) {
  EXPECT_TRUE(t_.may_send_secrets());
  t_.on_head(status(302, {{"Location", "/b.tar"}}));
  EXPECT_TRUE(t_.may_send_secrets());
  t_.on_head(status(302, {{"Location", "http://h:81/b.tar"}}));
  EXPECT_FALSE(t_.may_send_secrets());
}

TEST_F(HttpTransfer, RedirectsDoNotLeadDownOrInside) {
  http_transfer t = transfer_of("https://public.example/a.tar", {});
  const auto to = [&](const char* where) {
    return kind_of(http_transfer(t).on_head(status(302, {{"Location", where}})));
  };
  EXPECT_EQ(to("http://public.example/a.tar"), errc::protocol);
  EXPECT_EQ(to("https://169.254.169.254/latest"), errc::protocol);
  EXPECT_EQ(to("https://127.0.0.1/a"), errc::protocol);
  EXPECT_EQ(to("https://[::ffff:127.0.0.1]/a"), errc::protocol);
  EXPECT_EQ(to("https://localhost/a"), errc::protocol);
  EXPECT_EQ(to("https://other.example/a.tar"), errc::internal);  // followed
}

TEST_F(HttpTransfer, AnErrorPageWithStatus200IsAskedForAgain) {
  t_.on_head(whole(300));
  const std::string page =
      "<?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code><Message>x</Message></Error>";
  const auto again = t_.on_first_bytes(page);
  ASSERT_TRUE(again);
  EXPECT_TRUE(is<ask_again>(*again));
  EXPECT_FALSE(t_.on_first_bytes("<?xml version=\"1.0\"?><data/>"));
  EXPECT_FALSE(t_.on_first_bytes("00000000.jpg"));
}

TEST_F(HttpTransfer, WhatCannotBeMendedIsNotAskedForAgain) {
  EXPECT_EQ(kind_of(t_.on_failure(error(errc::untrusted, "a certificate"))), errc::untrusted);
}

TEST(RetryAfter, SecondsAndDates) {
  EXPECT_EQ(parse_retry_after("120", 0), 120s);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 10), 50s);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 100), 0s);
  EXPECT_FALSE(parse_retry_after("soon", 0));
}

}  // namespace
}  // namespace millrace
