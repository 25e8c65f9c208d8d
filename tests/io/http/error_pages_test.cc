#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "io/hashes.h"
#include "io/http/transfer.h"
#include "tests/support/http_reads.h"
#include "tests/support/numbered.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::answer;
using testing::numbered;
using testing::sent;

// Pages that servers, and proxies before them, send instead of objects.
class ErrorPages : public testing::http_reads {};

TEST_F(ErrorPages, AreNoObjectsHoweverTheyCome) {
  const std::string page =
      "<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code><Message>x</Message></Error>";
  const std::string content = "<?xml version=\"1.0\"?>\n<data>" + numbered(10'000) + "</data>";
  for (const bool recovers : {true, false}) {
    int requests = 0;
    net_->serve("10.0.0.1", [&](const std::string&) {
      const bool fails = ++requests < 3 || !recovers;
      const std::string body = fails ? page : content;
      std::vector<sent> pieces{
          {.bytes = fmt::format("HTTP/1.1 200 x\r\nETag: \"{}\"\r\nContent-Length: {}\r\n\r\n",
                                fails, body.size())}};
      for (const char c : body) pieces.push_back({.after = 10us, .bytes = std::string(1, c)});
      return pieces;
    });
    const auto out = read("http://h/a");
    EXPECT_EQ(out.content, recovers ? content : "");
    ASSERT_EQ(out.failed.has_value(), !recovers);
    EXPECT_EQ(requests, recovers ? 3 : options_.attempts);
  }
}

// What the head of an error page says (its length, its digest, no ranges) is about the page, even
// if the page arrives some time after its head.
TEST_F(ErrorPages, TellNothingOfTheObject) {
  const std::string content = numbered(1'000'000);
  const std::string page = "<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>";
  const std::string digest = base64(digest_of(hash_algorithm::md5, page));
  for (const auto split : {std::optional<int>(), std::optional(1), std::optional(4)}) {
    for (const auto late : {0us, 1000us}) {
      int requests = 0;
      net_->serve("10.0.0.1", [&](const std::string& request) {
        if (++requests > 1) return answer(request, content);
        return std::vector<sent>{
            {.bytes = fmt::format("HTTP/1.1 200 x\r\nContent-Length: {}\r\nContent-MD5: {}\r\n\r\n",
                                  page.size(), digest)},
            {.after = late, .bytes = page}};
      });
      options_.split = split;
      options_.part_bytes = 128_KiB;
      EXPECT_TRUE(read("http://h/a").content == content) << late.count();
      if (split == 4) EXPECT_GT(requests, 4);  // ranges are still used
    }
  }
}

// A proxy's answer about a failure of its own, once for each part but the first.
TEST_F(ErrorPages, AreNoChangeOfTheObjectInPlaceOfAPart) {
  const std::string content = numbered(1'000'000);
  for (const std::string validator : {"", "ETag: \"page\"\r\n", "ETag: \"v1\"\r\n"}) {
    for (const bool is_long : {false, true}) {
      const std::string page(is_long ? 400'000 : 57, 'x');
      std::map<std::uint64_t, int> requests;
      net_->serve("10.0.0.1", [&](const std::string& request) {
        const auto range = testing::range_of(request, content.size());
        const bool is_first = !range || range->begin == 0;
        if (is_first || ++requests[range->begin] > 1) return answer(request, content);
        return std::vector<sent>{
            {.bytes = fmt::format("HTTP/1.1 200 x\r\nContent-Length: {}\r\n{}\r\n{}", page.size(),
                                  validator, page)}};
      });
      options_.split = 4;
      options_.part_bytes = 128_KiB;
      const auto out = read("http://h/a");
      EXPECT_FALSE(out.failed) << validator << out.failed->message();
      EXPECT_TRUE(out.content == content) << validator;
      EXPECT_GT(requests.size(), 3U);
    }
  }
}

// URLs that are equal once their secrets are hidden name different objects.
TEST_F(ErrorPages, AreOfTheUrlThatWasAskedFor) {
  for (const std::string page :
       {"", "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code></Error>"}) {
    net_->serve("10.0.0.1", [&](const std::string&) {
      return std::vector<sent>{
          {.bytes =
               fmt::format("HTTP/1.1 404 x\r\nContent-Length: {}\r\n\r\n", page.size()) + page}};
    });
    const auto one = read("http://h/get?id=1").failed;
    const auto other = read("http://h/get?id=2").failed;
    ASSERT_TRUE(one && other);
    EXPECT_EQ(one->what().ends_with("(NoSuchKey)"), !page.empty()) << one->what();
    EXPECT_EQ(one->where(), other->where());
    EXPECT_NE(one->where_fingerprint(), other->where_fingerprint());
  }
}

// A server may repeat the request anywhere, and an error must not show it.
TEST_F(ErrorPages, NeverRepeatWhatIsSecret) {
  const std::string echo = "/a?sig=sekret";
  const std::string page =
      fmt::format("<?xml version=\"1.0\"?>\n<Error><Code>{}</Code></Error>", echo);
  const std::string with_page = fmt::format("Content-Length: {}\r\n\r\n{}", page.size(), page);
  options_.attempts = 2;
  for (const std::string& form : {
           "200 x\r\n" + with_page,
           "403 x\r\n" + with_page,
           "206 x\r\nContent-Range: bytes 0-4/" + echo + "\r\nContent-Length: 5\r\n\r\nxxxxx",
           "206 x\r\nContent-Type: " + echo + "\r\nContent-Length: 5\r\n\r\nxxxxx",
           "200 x\r\nContent-Encoding: " + echo + "\r\nContent-Length: 5\r\n\r\nxxxxx",
           "302 x\r\nLocation: ftp:" + echo + "\r\nContent-Length: 0\r\n\r\n",
           "302 x\r\nLocation: http://[" + echo + "\r\nContent-Length: 0\r\n\r\n",
           "301 x\r\nx-amz-bucket-region: " + echo + "\r\nContent-Length: 0\r\n\r\n",
       }) {
    net_->serve("10.0.0.1", [&](const std::string&) {
      return std::vector<sent>{{.bytes = "HTTP/1.1 " + form}};
    });
    const auto out = read("http://h" + echo);
    ASSERT_TRUE(out.failed) << form;
    EXPECT_EQ(out.failed->message().find("sekret"), std::string::npos) << out.failed->message();
  }
}

// A store's URL without an archive's ending may be meant as a prefix.
TEST_F(ErrorPages, OfAPrefixTellWhatItLacks) {
  const auto hint_of = [&](const std::string& name, const std::string& target) {
    http_object object(parse_url(target).value());
    object.name = name;
    http_transfer t(object, {}, {}, options_, real_time(), 1);
    const auto next = t.on_head({.status = 404, .content_length = {}, .fields = {}});
    return std::get<error>(next).what_to_do();
  };
  EXPECT_EQ(hint_of("", "http://h/d"), "check the URL");
  EXPECT_EQ(hint_of("s3://b/d.tar", "http://h/b/d.tar"), "check the URL");
  EXPECT_NE(hint_of("s3://b/d", "http://h/b/d").find("ends with '/'"), std::string::npos);
  EXPECT_NE(hint_of("", "http://h/d/").find("cannot list folders"), std::string::npos);
}

}  // namespace
}  // namespace millrace
