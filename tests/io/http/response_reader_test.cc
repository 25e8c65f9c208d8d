#include "io/http/response_reader.h"
#include "engine/coroutines/async.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/asio/post.hpp>

#include "engine/base/units.h"
#include "tests/support/numbered.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::sent;

const std::string chunked_head = "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string in_single_bytes(const std::string& content) {
  std::string out;
  for (const char c : content) out += std::string("1\r\n") + c + "\r\n";
  return out + "0\r\n\r\n";
}

class ResponseReader : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(reader_.put_head(chunked_head).value(), chunked_head.size()); }
  // The bytes of one call.
  std::string taken(std::string& pending, std::size_t most = 64_KiB) {
    std::string into(most, '\0');
    const auto got = reader_.take_body(pending, std::as_writable_bytes(std::span(into)));
    into.resize(got ? *got : 0);
    failed_ = !got;
    return into;
  }

  response_reader reader_{false};
  bool failed_ = false;
};

TEST_F(ResponseReader, TakesAllChunksThatAreThereAtOnce) {
  const std::string content = testing::numbered(10'000);
  std::string pending = in_single_bytes(content);
  EXPECT_EQ(taken(pending, 9'000), content.substr(0, 9'000));
  EXPECT_EQ(taken(pending), content.substr(9'000));
  EXPECT_TRUE(reader_.is_done());
  EXPECT_EQ(pending, "");
}

TEST_F(ResponseReader, GivesWhatComesBeforeABrokenChunk) {
  std::string pending = "3\r\nabc\r\n2\r\nde\r\nno chunk\r\n";
  EXPECT_EQ(taken(pending), "abcde");
  EXPECT_FALSE(failed_);
  EXPECT_EQ(taken(pending), "");
  EXPECT_TRUE(failed_);
}

TEST_F(ResponseReader, GoesOnWhereverAChunkIsCut) {
  const std::string content = testing::numbered(300);
  const std::string all = "64\r\n" + content.substr(0, 100) + "\r\nc8;x=y\r\n" +
                          content.substr(100) + "\r\n0\r\nT: x\r\n\r\n";
  std::string pending;
  std::string out;
  for (const char c : all) {
    pending += c;
    out += taken(pending);
    EXPECT_FALSE(failed_);
  }
  EXPECT_EQ(out, content);
  EXPECT_TRUE(reader_.is_done());
}

// Other coroutines run while one connection always has more data.
TEST(HttpTurns, AServerThatIsAlwaysAheadKeepsNobodyFromTheThread) {
  testing::simulated_client client;
  const std::string content = testing::numbered(1'000'000);
  const std::string body = in_single_bytes(content);
  std::uint64_t longest = 0;
  const auto others = [&]() -> awaitable<void> {
    std::uint64_t before = 0;
    for (int turns = 0; turns < 100'000 && client.counters.bytes < content.size(); ++turns) {
      co_await asio::post(client.context, no_throw);
      longest =
          std::max(longest, client.counters.bytes - std::exchange(before, client.counters.bytes));
    }
  };
  client.net->serve("10.0.0.1", [&](const std::string&) {
    client.running->spawn(others());
    std::vector<sent> pieces{{.bytes = chunked_head}};
    for (std::size_t at = 0; at < body.size(); at += 64_KiB) {
      pieces.push_back({.bytes = body.substr(at, 64_KiB)});
    }
    return pieces;
  });
  client.source.chunk_bytes = 2_MiB;
  EXPECT_EQ(client.read("http://h/a", {}, 1h).content, content);
  EXPECT_GT(longest, 0U);
  EXPECT_LT(longest, 100'000U);
}

}  // namespace
}  // namespace millrace
