// Objects whose length a server states late, wrongly, or differently from answer to answer.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "engine/coroutines/scope.h"
#include "io/hashes.h"
#include "io/http/ask.h"
#include "io/http/transfer.h"
#include "tests/support/numbered.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::field_of;
using testing::numbered;
using testing::outcome;
using testing::sent;

using answers = std::vector<sent>;

std::string whole_head(const std::string& fields, std::optional<std::size_t> length) {
  return "HTTP/1.1 200 x\r\n" + fields +
         (length ? fmt::format("Content-Length: {}\r\n\r\n", *length)
                 : std::string("Transfer-Encoding: chunked\r\n\r\n"));
}
answers whole(const std::string& fields, const std::string& body) {
  return {{1ms, whole_head(fields, body.size()) + body}};
}
answers in_chunks(const std::string& fields, const std::string& body) {
  return {{1ms,
           whole_head(fields, {}) + fmt::format("{:x}\r\n", body.size()) + body + "\r\n0\r\n\r\n"}};
}
// The connection ends after the head of a body of `length` bytes.
answers cut_after_head(const std::string& fields, std::size_t length) {
  return {{1ms, whole_head(fields, length), sent::end::reset}};
}
answers part(const std::string& fields, const std::string& object, byte_range range,
             const std::string& total) {
  const auto end = std::min<std::uint64_t>(*range.end, object.size());
  return {{1ms, fmt::format("HTTP/1.1 206 x\r\n{}Content-Range: bytes {}-{}/{}\r\n"
                            "Content-Length: {}\r\n\r\n{}",
                            fields, range.begin, end - 1, total, end - range.begin,
                            object.substr(range.begin, end - range.begin))}};
}
answers beyond(const std::string& fields, std::size_t length) {
  return {{1ms, fmt::format("HTTP/1.1 416 x\r\n{}Content-Range: bytes */{}\r\n"
                            "Content-Length: 0\r\n\r\n",
                            fields, length)}};
}

const std::string v1 = "ETag: \"v1\"\r\n";
const std::string v2 = "ETag: \"v2\"\r\n";

class HttpLengths : public ::testing::Test {
 protected:
  // Request n, counted from 1, gets the answer of `give`.
  void serve(std::function<answers(int, const std::string&)> give) {
    client_.net->serve("10.0.0.1", [this, give = std::move(give)](const std::string& request) {
      return give(++requests_, request);
    });
  }

  static http_transfer transfer(byte_range range, object_version known = {}) {
    static const http_options options;
    return {http_object(parse_url("http://h/a").value()),
            range,
            std::move(known),
            options,
            real_time(),
            1};
  }

  testing::simulated_client client_;
  int requests_ = 0;
};

TEST_F(HttpLengths, ARangeIsNoLongerThanAskedForWhenItIsAskedForAgain) {
  const std::string all = numbered(400'000);
  serve([&](int n, const std::string&) {
    return n == 1 ? cut_after_head(v1, all.size()) : whole(v1, all);
  });
  const outcome out = client_.read("http://h/a", {.begin = 0, .end = 100'000});
  EXPECT_FALSE(out.failed);
  EXPECT_TRUE(out.content == all.substr(0, 100'000));
}

// It might be another object: there is no validator.
TEST_F(HttpLengths, PartsOfUnknownLengthAreNotContinuedByAWholeObject) {
  const std::string all = numbered(200'000);
  serve([&](int n, const std::string&) {
    return n == 1 ? part("", all, {.begin = 9799, .end = 100'001}, "*")
                  : whole("", std::string(all.size(), 'B'));
  });
  const outcome out = client_.read("http://h/a", {.begin = 9799});
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::protocol);
  EXPECT_TRUE(out.content == all.substr(9799, 100'001 - 9799));
}

// Nothing is kept of an answer that brought no bytes.
TEST_F(HttpLengths, AreThoseOfTheAnswerThatIsTaken) {
  const std::string all = numbered(131'072);
  for (const std::string& validator : {v2, std::string()}) {
    for (const std::uint64_t begin : {0UL, 512UL}) {
      requests_ = 0;
      serve([&](int n, const std::string&) {
        return n == 1 ? cut_after_head(validator.empty() ? "" : v1, 10'240)
                      : in_chunks(validator, all);
      });
      const outcome out = client_.read("http://h/a", {.begin = begin});
      EXPECT_FALSE(out.failed);
      EXPECT_TRUE(out.content == all.substr(begin)) << out.content.size();
    }
  }
}

// It has no validator, so the part that it fits into is not enough to continue from.
TEST_F(HttpLengths, ASmallerObjectThanThePartAskedForIsAskedForAsAWhole) {
  const std::string all = numbered(1000);
  client_.options.split = 2;
  serve([&](int, const std::string& request) {
    const auto range = testing::range_of(request, all.size());
    return range ? part("", all, *range, "*") : whole("", all);
  });
  const outcome out = client_.read("http://h/a");
  EXPECT_FALSE(out.failed);
  EXPECT_TRUE(out.content == all) << out.content.size();
  EXPECT_LE(requests_, 3);
}

TEST_F(HttpLengths, ARefusedRangeOfAnotherVersionEndsNothing) {
  const std::string all = numbered(131'072);
  for (const std::string& other : {v2, std::string("Last-Modified: then\r\n")}) {
    const std::string first = other == v2 ? v1 : "Last-Modified: now\r\n";
    requests_ = 0;
    serve([&](int n, const std::string&) -> answers {
      if (n > 1) return beyond(other, 65'536);
      return {{1ms, whole_head(first, {}) + "10000\r\n" + all.substr(0, 65'536) + "\r\n",
               sent::end::reset}};
    });
    const outcome out = client_.read("http://h/a");
    ASSERT_TRUE(out.failed);
    EXPECT_EQ(out.failed->kind(), errc::changed);
  }
}

// The requested end is beyond the object's, and a whole object arrives without a length.
TEST_F(HttpLengths, NothingIsGivenAgainAfterTheEnd) {
  const std::string all = numbered(600'000);
  client_.options.split = 2;
  client_.options.part_bytes = 1_MiB;
  serve([&](int n, const std::string&) -> answers {
    if (n == 1) {
      answers first = part(v1, all, {.begin = 0, .end = all.size()}, std::to_string(all.size()));
      first.front().bytes.resize(first.front().bytes.size() - all.size());
      first.front().ends = sent::end::reset;
      return first;
    }
    if (n == 2) return whole("ETag: \"v0\"\r\n", std::string(500'000, 'B'));
    return in_chunks(v1, all);
  });
  const outcome out = client_.read("http://h/a");
  EXPECT_FALSE(out.failed);
  EXPECT_TRUE(out.content == all) << out.content.size();
}

// A replica that still has a shorter object refuses a part in the middle.
TEST_F(HttpLengths, NoPartIsGivenAfterOneThatIsMissing) {
  const std::string all = numbered(4_MiB);
  client_.options.split = 2;
  client_.options.part_bytes = 1_MiB;
  serve([&](int, const std::string& request) {
    const byte_range range = *testing::range_of(request, all.size());
    const bool is_second = range.begin == 1_MiB;
    return is_second ? beyond("", 600'000) : part(v1, all, range, "*");
  });
  const outcome out = client_.read("http://h/a");
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::changed);
  EXPECT_TRUE(out.content == all.substr(0, 1_MiB)) << out.content.size();
}

TEST_F(HttpLengths, NoMorePartsAreAskedForBehindTheEnd) {
  const std::string all = numbered(3'000'000);
  client_.options.split = 4;
  client_.options.part_bytes = 64_KiB;
  client_.options.hedge = 0;
  serve([&](int n, const std::string& request) {
    const byte_range range = *testing::range_of(request, ~std::uint64_t{0});
    if (range.begin >= all.size()) return beyond(v1, all.size());
    answers out = part(v1, all, range, "*");
    if (n == 1) {  // its head comes at once, its body late
      const std::size_t head = out.front().bytes.find("\r\n\r\n") + 4;
      out.push_back({5s, out.front().bytes.substr(head)});
      out.front().bytes.resize(head);
    }
    return out;
  });
  const outcome out = client_.read("http://h/a");
  EXPECT_FALSE(out.failed);
  EXPECT_TRUE(out.content == all);
  EXPECT_LE(requests_, 46 + 4);  // its parts, and those under way when the end is known
}

// A server without ranges sends all of the object before two bytes at its end.
TEST_F(HttpLengths, WhatIsLeftOutPassesInLargePieces) {
  const std::string all = numbered(8_MiB);
  serve([&](int, const std::string&) { return whole(v1, all); });
  const outcome out = client_.read("http://h/a", {.begin = all.size() - 2, .end = all.size()});
  EXPECT_FALSE(out.failed);
  EXPECT_TRUE(out.content == all.substr(all.size() - 2));
  EXPECT_LE(client_.counters.requests, 1U);
}

TEST_F(HttpLengths, NoBytesAtAllAreCheckedAsWell) {
  const std::string digest = base64(digest_of(hash_algorithm::crc32c, "something"));
  serve([&](int, const std::string&) {
    return whole("Repr-Digest: crc32c=:" + digest + ":\r\n", "");
  });
  const outcome out = client_.read("http://h/a");
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::integrity);
}

// The place where it ended was not stated by the server.
TEST_F(HttpLengths, AnObjectOfNoToldLengthIsOpenedAgain) {
  for (const std::size_t size : {0UL, 1UL, 300'000UL}) {
    const std::string all = numbered(size);
    client_.version = std::make_shared<opened_version>();
    serve([&](int, const std::string&) -> answers {
      if (!all.empty()) return in_chunks("", all);
      return {{1ms, whole_head("", {}) + "0\r\n\r\n"}};
    });
    for (int times = 0; times < 2; ++times) {
      const outcome out = client_.read("http://h/a");
      EXPECT_FALSE(out.failed) << out.failed->message();
      EXPECT_TRUE(out.content == all) << out.content.size();
    }
  }
}

// From a server without ranges; the object is known from an answer that had no length either.
TEST_F(HttpLengths, AWholeObjectOfUnknownLengthEndsWhereItEnds) {
  const object_version known{.total = {}, .etag = "\"v1\"", .last_modified = {}};
  for (const std::uint64_t begin : {0U, 30U, 50U, 80U}) {
    http_transfer t = transfer({.begin = begin, .end = 100}, known);
    t.on_head({.status = 200, .content_length = {}, .fields = {{"ETag", "\"v1\""}}});
    EXPECT_EQ(t.on_body(50), std::min<std::uint64_t>(begin, 50));
    EXPECT_TRUE(std::holds_alternative<http_transfer::finished>(t.on_end()));
    EXPECT_EQ(t.version().total, 50U);
  }
}

// The requested part extends beyond the object, whose length no answer states before.
TEST_F(HttpLengths, APartIsAllWhereItEndsAsItSays) {
  const std::string all = numbered(102'400);
  client_.options.split = {};
  for (const std::string& name : {v1, std::string("ETag: W/\"v1\"\r\n"), std::string()}) {
    SCOPED_TRACE(name);
    for (const byte_range range :
         {byte_range{}, {.begin = 0, .end = 200'000}, {.begin = 512, .end = 102'401}}) {
      requests_ = 0;
      serve([&](int, const std::string& request) {
        const auto asked = testing::range_of(request, all.size());
        if (!asked) return whole(name, all);
        return asked->begin < all.size() ? part(name, all, *asked, "*") : beyond(name, all.size());
      });
      const outcome out = client_.read("http://h/a", range);
      EXPECT_FALSE(out.failed) << out.failed->message();
      EXPECT_TRUE(out.content == all.substr(range.begin)) << out.content.size();
      if (!name.empty()) EXPECT_LE(requests_, 2);
    }
  }
}

// Parts that are smaller than requested, of an object without a validator: joined, they could be of
// two objects.
TEST_F(HttpLengths, WhatCannotBePutTogetherIsAskedForAsAWhole) {
  http_transfer t = transfer({.begin = 0, .end = 1000});
  const auto hundred = [](int from) {
    return response_head{
        .status = 206,
        .content_length = 100,
        .fields = {{"Content-Range", fmt::format("bytes {}-{}/*", from, from + 99)}}};
  };
  t.on_head(hundred(0));
  t.on_body(100);
  EXPECT_TRUE(std::holds_alternative<http_transfer::ask_again>(t.on_end()));
  EXPECT_EQ(find_field(t.request_fields(), "range"), "bytes=100-999");
  const auto next = t.on_head(hundred(100));
  ASSERT_TRUE(std::holds_alternative<http_transfer::ask_again>(next));
  EXPECT_TRUE(std::get<http_transfer::ask_again>(next).from_begin);
  EXPECT_TRUE(t.request_fields().empty());
  t.on_head({.status = 200, .content_length = 2000, .fields = {}});
  EXPECT_EQ(t.on_body(2000), 0U);
  EXPECT_TRUE(t.brings_the_rest());
  EXPECT_TRUE(std::holds_alternative<http_transfer::finished>(t.on_end()));
}

// As S3 does, which states it only in the body.
TEST_F(HttpLengths, A416ThatDoesNotTellTheLengthOfAnEmptyObject) {
  const answers invalid_range{{1ms,
                               "HTTP/1.1 416 x\r\nContent-Length: 41\r\n\r\n"
                               "<Error><Code>InvalidRange</Code></Error>\n"}};
  client_.options.split = {};
  for (const std::size_t size : {0UL, 1000UL}) {
    const std::string all = numbered(size);
    serve([&](int, const std::string& request) {
      return testing::range_of(request, size) ? invalid_range : whole(v1, all);
    });
    for (const byte_range range : {byte_range{}, {.begin = 0, .end = 1}}) {
      const outcome out = client_.read("http://h/a", range);
      EXPECT_FALSE(out.failed) << out.failed->message();
      EXPECT_TRUE(out.content == all.substr(0, range.end.value_or(size)));
    }
  }
}

// The destination of a redirect may be valid for one use only.
TEST_F(HttpLengths, EachPieceIsAskedForWhereTheFirstWas) {
  http_transfer t = transfer({.begin = 512});
  for (const int from : {512, 612, 712}) {
    EXPECT_EQ(to_string(t.target()), "http://h/a");
    t.on_head({.status = 302, .content_length = {}, .fields = {{"Location", "http://h/once"}}});
    EXPECT_EQ(to_string(t.target()), "http://h/once");
    const std::string range = fmt::format("bytes {}-{}/*", from, from + 99);
    t.on_head({.status = 206,
               .content_length = 100,
               .fields = {{"Content-Range", range}, {"ETag", "\"v1\""}}});
    t.on_body(100);
    ASSERT_TRUE(std::holds_alternative<http_transfer::ask_again>(t.on_end()));
  }
}

// A validator shows that it is the object whose length is known.
TEST_F(HttpLengths, AnObjectOfAKnownLengthMayComeInChunks) {
  const std::string all = numbered(300'000);
  serve([&](int n, const std::string& request) {
    if (n == 1) return part(v1, all, {.begin = 0, .end = 65'536}, std::to_string(all.size()));
    EXPECT_EQ(field_of(request, "If-Range"), "\"v1\"");
    return in_chunks(v1, all);
  });
  client_.options.split = 2;
  client_.options.part_bytes = 64_KiB;
  const outcome out = client_.read("http://h/a");
  EXPECT_FALSE(out.failed);
  EXPECT_TRUE(out.content == all) << out.content.size();
}

// A whole object when one byte was requested, or no byte at all, is an answer as well.
TEST_F(HttpLengths, ARequestForAnEmptyObjectEnds) {
  serve([&](int, const std::string&) { return beyond(v1, 0); });
  const auto stack = client_.make_stack();
  std::optional<result<http_answer>> got;
  const auto probe = [](testing::simulated_client* client, std::shared_ptr<http_stack> of,
                        std::size_t most,
                        std::optional<result<http_answer>>* into) -> awaitable<void> {
    scope tasks(client->context.get_executor());
    http_object object(parse_url("http://h/a").value());
    *into = co_await ask(*of, tasks, std::move(object), "GET", {}, most);
    co_await tasks.join();
  };
  for (const std::size_t most : {std::size_t{0}, std::size_t{100}}) {
    client_.time.run(probe(&client_, stack, most, &got), 1h);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->has_value(), most == 0);
  }
  EXPECT_EQ(requests_, 2);
}

}  // namespace
}  // namespace millrace
