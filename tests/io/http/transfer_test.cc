#include "io/http/transfer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

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
// The final error for an answer that every attempt gets; errc::internal if the answer is accepted.
errc kind_at_last(http_transfer& t, const response_head& head) {
  constexpr int attempts = 3;
  http_transfer::action last = t.on_head(head);
  for (int i = 1; i < attempts && std::holds_alternative<http_transfer::ask_again>(last); ++i) {
    last = t.on_head(head);
  }
  return kind_of(last);
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
    return {
        http_object(parse_url(target).value()), range, std::move(known), options_, real_time(), 1};
  }
  static std::optional<std::string> range(const http_transfer& t) {
    return find_field(t.request_fields(), "range");
  }
  static std::optional<std::string> if_range(const http_transfer& t) {
    return find_field(t.request_fields(), "if-range");
  }
  const http_options options_{.attempts = 3, .backoff = 100ms};
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
  EXPECT_EQ(kind_at_last(t_, whole(100, "\"v2\"")), errc::changed);
  EXPECT_EQ(kind_at_last(other, part("bytes 60-119/120", 60, "\"v1\"")), errc::changed);
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

TEST_F(HttpTransfer, WhoGainsNextToNothingIsNotAskedForEver) {
  int requests = 0;
  for (unsigned i = 0; i < 1000; ++i) {
    t_.on_head(i == 0 ? whole(2000) : part(fmt::format("bytes {}-1999/2000", i), 2000U - i));
    t_.on_body(1);
    ++requests;
    if (is<error>(t_.on_failure(error(errc::cut, "cut").retryable()))) break;
  }
  EXPECT_EQ(requests, 30);
}

TEST_F(HttpTransfer, WhatCannotBeResumedBeginsAnewWhereNothingWasGivenOut) {
  const response_head nameless{.status = 200, .content_length = 100, .fields = {}};
  int requests = 0;
  http_transfer::action last = finished{};
  for (; requests < 10 && !is<error>(last); ++requests) {
    EXPECT_FALSE(range(t_));
    t_.on_head(nameless);
    t_.on_body(60);
    last = t_.on_end();
    if (const auto* again = std::get_if<ask_again>(&last)) {
      EXPECT_TRUE(again->from_begin);
    }
  }
  EXPECT_EQ(requests, 3);
}

TEST_F(HttpTransfer, AnAnswerThatNamesNothingIsNotTakenForTheVersionKnown) {
  const auto resumed = [&](http_fields first, http_fields second) {
    http_transfer t = transfer_at(0);
    t.on_head({.status = 200, .content_length = 100, .fields = std::move(first)});
    t.on_body(60);
    t.gave_out();
    t.on_end();
    second.push_back({"Content-Range", "bytes 60-99/100"});
    return kind_at_last(t, {.status = 206, .content_length = 40, .fields = std::move(second)});
  };
  const http_field date{"Last-Modified", "Sat, 01 Jan 2022 00:00:00 GMT"};
  EXPECT_EQ(resumed({{"ETag", "\"v1\""}}, {}), errc::changed);
  EXPECT_EQ(resumed({{"ETag", "\"v1\""}, date}, {date}), errc::internal);  // accepted
  EXPECT_EQ(resumed({date}, {}), errc::internal);  // an answer to If-Range may omit it
  const http_field digest{"Repr-Digest", "md5=:AAAAAAAAAAAAAAAAAAAAAA==:"};
  const http_field other{"Repr-Digest", "md5=:BAAAAAAAAAAAAAAAAAAAAA==:"};
  EXPECT_EQ(resumed({date, digest}, {date, other}), errc::changed);
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
  t_.gave_out();
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
  http_transfer broken = transfer_of("http://h/a.tar", {.begin = 0, .end = 4096});
  EXPECT_EQ(kind_of(broken.on_head(status(416, {{"Content-Range", "bytes */900"}}))),
            errc::protocol);
  EXPECT_TRUE(is<ask_again>(broken.on_head(status(416))));
  EXPECT_FALSE(range(broken));
  EXPECT_EQ(kind_of(broken.on_head(status(416))), errc::protocol);
  http_transfer known = transfer_of("http://h/a.tar", {.begin = 0, .end = 4096},
                                    {.total = 1000, .etag = "\"v1\"", .last_modified = {}});
  EXPECT_EQ(kind_at_last(known, status(416, {{"Content-Range", "bytes */0"}})), errc::changed);
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
    return kind_at_last(t, part(std::move(text), length));
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

// From each kind of place to each: whether it is followed, and whether secrets go along.
TEST_F(HttpTransfer, ARedirectToWhatIsNoUrlIsTheServersMistakeAtTheObjectsUrl) {
  for (const char* location :
       {"http://h:99999999/p?sig=cret", "http://us:cret@/p", "https:", "http://[::1/p", "//h:x/"}) {
    http_transfer t = transfer_at(0);
    const auto next = t.on_head(status(302, {{"Location", location}}));
    ASSERT_TRUE(is<error>(next)) << location;
    const error& why = std::get<error>(next);
    EXPECT_EQ(why.kind(), errc::protocol) << location;
    EXPECT_EQ(why.where(), "http://h/a.tar");
    EXPECT_TRUE(why.is_skippable());
    EXPECT_EQ(why.message().find("cret"), std::string::npos) << why.message();
  }
}

TEST_F(HttpTransfer, RedirectsFromEachKindOfPlaceToEach) {
  const std::vector<std::string> places{
      "http://public.example", "https://public.example", "http://public.example:81",
      "http://other.example",  "https://other.example",  "http://localhost",
      "http://127.0.0.1",      "http+unix://%2Frun%2Fa", "http+unix://%2Frun%2Fb"};
  const auto is_socket = [](const url& u) { return !u.socket.empty(); };
  const auto is_inside = [](const url& u) {
    return u.host == "localhost" || u.host == "127.0.0.1";
  };
  for (const std::string& from : places) {
    for (const std::string& to : places) {
      SCOPED_TRACE(from + " to " + to);
      const url origin = parse_url(from + "/a").value();
      const url next = parse_url(to + "/b").value();
      http_transfer t = transfer_of(from + "/a", {});
      const auto action = t.on_head(status(302, {{"Location", to + "/b"}}));
      const bool is_same = origin.origin() == next.origin();
      const bool follows =
          is_same || (!is_socket(next) && (is_inside(origin) || !is_inside(next)) &&
                      !(origin.scheme == "https" && next.scheme == "http"));
      EXPECT_EQ(is<ask_again>(action), follows);
      if (follows) {
        EXPECT_EQ(t.may_send_secrets(), is_same);
      }
    }
  }
}

TEST_F(HttpTransfer, NoRedirectLeadsBackIntoASocket) {
  http_transfer t = transfer_of("http+unix://%2Frun%2Fa/x", {});
  t.on_head(status(302, {{"Location", "y"}}));
  EXPECT_TRUE(t.may_send_secrets());
  EXPECT_EQ(t.target().socket, "/run/a");
  t.on_head(status(302, {{"Location", "http://other.example/z"}}));
  EXPECT_FALSE(t.may_send_secrets());
  EXPECT_EQ(kind_of(t.on_head(status(302, {{"Location", "http+unix://%2Frun%2Fa/x"}}))),
            errc::protocol);
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
  for (const char* host : {"localhost", "localhost.", "2130706433", "0x7f.1", "127.1", "0",
                           "[64:ff9b::169.254.169.254]"}) {
    EXPECT_EQ(to(fmt::format("https://{}/a", host).c_str()), errc::protocol) << host;
  }
  EXPECT_EQ(to("https://other.example/a.tar"), errc::internal);  // followed
}

// The destination of a name is known only when it is connected to.
TEST_F(HttpTransfer, OnlyBehindRedirectsElsewhereAreAddressesJudged) {
  const auto to = [](const char* location) { return status(302, {{"Location", location}}); };
  http_transfer t = transfer_of("http://public.example/a.tar", {});
  EXPECT_FALSE(t.public_only());
  t.on_head(to("http://public.example:81/a.tar"));
  EXPECT_FALSE(t.public_only());
  t.on_head(to("http://other.example/a.tar"));
  EXPECT_TRUE(t.public_only());
  // A server whose own address is private may redirect to others.
  http_transfer inside = transfer_of("http://intranet.example/a.tar", {});
  response_head head = to("http://localhost/a.tar");
  head.from_private = true;
  EXPECT_TRUE(is<ask_again>(inside.on_head(head)));
  EXPECT_FALSE(inside.public_only());
}

// In pieces of every size.
TEST_F(HttpTransfer, AnErrorPageWithStatus200IsAskedForAgain) {
  const std::string page =
      "<?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code><Message>x</Message></Error>";
  for (std::size_t piece = 1; piece <= page.size(); ++piece) {
    http_transfer t = transfer_at(0);
    for (int time = 1; time <= 3; ++time) {
      t.on_head(whole(page.size()));
      std::optional<http_transfer::action> judged;
      for (std::size_t at = 0; at < page.size() && !judged; at += piece) {
        const std::string_view part = std::string_view(page).substr(at, piece);
        judged = t.on_front(part);
        if (judged) break;
        t.on_body(part.size());
        EXPECT_TRUE(t.holds_front());
      }
      ASSERT_TRUE(judged) << piece;
      if (time == 3) {
        EXPECT_EQ(kind_of(*judged), errc::http_status);
        EXPECT_NE(std::get<error>(*judged).message().find("SlowDown"), std::string::npos);
        break;
      }
      ASSERT_TRUE(is<ask_again>(*judged));
      EXPECT_TRUE(std::get<ask_again>(*judged).from_begin);
      EXPECT_FALSE(range(t));
    }
  }
}

TEST_F(HttpTransfer, WhatOnlyBeginsAsAnErrorPageDoesIsDelivered) {
  const auto held_after = [](http_transfer t, const std::string& front) {
    t.on_head({.status = 200, .content_length = {}, .fields = {}});
    EXPECT_FALSE(t.on_front(front));
    t.on_body(front.size());
    return t.holds_front();
  };
  EXPECT_FALSE(held_after(t_, "00000000.jpg"));
  EXPECT_FALSE(held_after(t_, "<?xmas"));
  EXPECT_TRUE(held_after(t_, "<?xml version=\"1.0\"?><data/>"));
  EXPECT_FALSE(held_after(t_, "<?xml version=\"1.0\"?>" + std::string(512, ' ') + "<Error>"));
  t_.on_head(whole(3));
  EXPECT_FALSE(t_.on_front("<?x"));
  t_.on_body(3);
  EXPECT_TRUE(is<finished>(t_.on_end()));
  EXPECT_FALSE(t_.holds_front());
}

TEST_F(HttpTransfer, AnErrorPageThatIsCutIsNotResumed) {
  t_.on_head(whole(100));
  EXPECT_FALSE(t_.on_front("<?xml "));
  t_.on_body(6);
  const auto again = t_.on_failure(error(errc::cut, "cut").retryable());
  ASSERT_TRUE(is<ask_again>(again));
  EXPECT_TRUE(std::get<ask_again>(again).from_begin);
  EXPECT_FALSE(range(t_));
  EXPECT_TRUE(is<take_body>(t_.on_head(whole(50, "\"the object's\""))));
}

TEST_F(HttpTransfer, APartOfUnknownLengthIsNotTheEnd) {
  http_transfer t = transfer_at(512);
  for (std::uint64_t from = 512; from < 512 + 300; from += 100) {
    EXPECT_EQ(range(t), fmt::format("bytes={}-", from));
    EXPECT_TRUE(is<take_body>(t.on_head(part(fmt::format("bytes {}-{}/*", from, from + 99), 100))));
    t.on_body(100);
    ASSERT_TRUE(is<ask_again>(t.on_end()));
  }
  http_transfer silent = t;
  EXPECT_EQ(kind_of(silent.on_head(status(416))), errc::protocol);
  http_transfer shorter = t;
  EXPECT_EQ(kind_at_last(shorter, status(416, {{"Content-Range", "bytes */700"}})), errc::changed);
  http_transfer told = t;
  EXPECT_TRUE(is<take_body>(told.on_head(part("bytes 812-819/820", 8))));
  told.on_body(8);
  EXPECT_TRUE(is<finished>(told.on_end()));
  EXPECT_TRUE(is<finished>(t.on_head(status(416, {{"Content-Range", "bytes */812"}}))));
  EXPECT_EQ(t.version().total, 812U);
}

TEST_F(HttpTransfer, PartsOfUnknownLengthAreOfOneVersionAndBringSomething) {
  const auto nameless = [](std::string text) {
    return response_head{
        .status = 206, .content_length = {}, .fields = {{"Content-Range", std::move(text)}}};
  };
  http_transfer t = transfer_at(10);
  EXPECT_TRUE(is<take_body>(t.on_head(nameless("bytes 10-19/*"))));
  t.on_body(10);
  EXPECT_TRUE(is<ask_again>(t.on_end()));
  http_transfer at_its_end = t;
  EXPECT_TRUE(is<finished>(at_its_end.on_head(status(416, {{"Content-Range", "bytes */20"}}))));
  EXPECT_EQ(kind_of(t.on_head(nameless("bytes 20-29/*"))), errc::protocol);
  int requests = 0;
  http_transfer drop = transfer_at(1);
  for (std::uint64_t at = 1; requests < 1000; ++at, ++requests) {
    drop.on_head(part(fmt::format("bytes {}-{}/*", at, at), 1));
    drop.on_body(1);
    if (is<error>(drop.on_end())) break;
  }
  EXPECT_LT(requests, 31);
}

TEST_F(HttpTransfer, WhatCannotBeMendedIsNotAskedForAgain) {
  EXPECT_EQ(kind_of(t_.on_failure(error(errc::untrusted, "a certificate"))), errc::untrusted);
}

}  // namespace
}  // namespace millrace
