// Uploads to stores that take their time over an answer, or do not wait for the end of a request.
#include "tests/support/uploads.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::body_of;
using testing::refuse;
using testing::reply;
using testing::sent;
using testing::uploaded_bytes;

class SlowUploads : public testing::Uploads {};

INSTANTIATE_TEST_SUITE_P(S3AndGoogle, SlowUploads, ::testing::Values("s3", "gs"),
                         [](const auto& p) { return p.param; });

// The parts of the store's answer: the head at once, then a blank every `gap`, then the rest.
std::vector<sent> dripped(const std::vector<sent>& whole, int blanks, std::chrono::seconds gap) {
  const std::string body = body_of(whole.front().bytes);
  std::vector<sent> out{{.bytes = "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n"}};
  for (int i = 0; i < blanks; ++i) out.push_back({.after = gap, .bytes = "1\r\n \r\n"});
  out.push_back({.bytes = fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body)});
  return out;
}

// As S3 does while it puts the parts of a large object together.
TEST_P(SlowUploads, AStoreMaySendBlanksForMinutesWhileItPutsPartsTogether) {
  const std::string content = uploaded_bytes(3 * part_bytes);
  for (const auto gap : {5s, 25s, 100s}) {
    bucket_.log.clear();
    fail(1, "POST", "uploadId",
         [&](const std::string& r) { return dripped(bucket_.answer(r), 30, gap); });
    const auto done = put("large", content);
    ASSERT_TRUE(done) << done.error().message();
    EXPECT_EQ(count("POST", "uploadId"), 2) << gap.count();  // once by the line above
  }
  // After the blanks, it may say that it failed: it is asked again.
  bucket_.log.clear();
  fail(1, "POST", "uploadId",
       [&](const std::string&) { return dripped(refuse(200, "InternalError"), 30, 5s); });
  const auto done = put("large", content);
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(count("POST", "uploadId"), 2);
}

TEST_P(SlowUploads, BlanksWithoutAnEndEnd) {
  client_.options.attempts = 2;
  fail(100, "POST", "uploadId",
       [](const std::string&) { return dripped(reply(200, "late"), 100'000, 9s); });
  const auto before = client_.time.now();
  const auto done = put("large", uploaded_bytes(3 * part_bytes));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::timed_out);
  EXPECT_LT(client_.time.now() - before, 3h);
}

// A store that refuses by the head of a request may read no more of it, and answer only once.
TEST_P(SlowUploads, ARefusalIsHeardWhileTheBodyIsBeingSent) {
  const std::string content = uploaded_bytes(part_bytes);
  client_.net->takes = part_bytes / 2;
  client_.net->early = [](const std::string&) { return refuse(403, "AccessDenied"); };
  const auto before = client_.time.now();
  const auto done = put("a", content);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::not_allowed) << done.error().message();
  EXPECT_NE(done.error().message().find("403 (AccessDenied)"), std::string::npos);
  EXPECT_LT(client_.time.now() - before, std::chrono::seconds(5));
  // One that takes its time is asked again, over another connection.
  int left = 1;
  client_.net->early = [&left](const std::string&) {
    return left-- == 1 ? refuse(503, "SlowDown") : std::vector<sent>();
  };
  client_.net->takes = ~std::size_t{0};
  const auto again = put("a", uploaded_bytes(3 * part_bytes / 4));
  ASSERT_TRUE(again) << again.error().message();
  // Success is none before the end of the body.
  client_.net->early = [](const std::string&) {
    return std::vector<sent>{{.bytes = "HTTP/1.1 100 Continue\r\n\r\n"}};
  };
  const auto third = put("b", content);
  ASSERT_TRUE(third) << third.error().message();
  EXPECT_TRUE(bucket_.objects.at("/b/b").content == content);
}

}  // namespace
}  // namespace millrace
