// Uploads to stores that do not wait for the end of a request.
#include "tests/support/uploads.h"

namespace millrace {
namespace {

using testing::refuse;
using testing::sent;
using testing::uploaded_bytes;

class SlowUploads : public testing::Uploads {};

INSTANTIATE_TEST_SUITE_P(S3AndGoogle, SlowUploads, ::testing::Values("s3", "gs"),
                         [](const auto& p) { return p.param; });

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
