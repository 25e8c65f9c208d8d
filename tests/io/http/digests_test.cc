#include <fmt/format.h>
#include <gtest/gtest.h>

#include "io/hashes.h"
#include "io/http/checked_bytes.h"
#include "tests/support/numbered.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::answer;
using testing::numbered;
using testing::outcome;
using testing::sent;
using testing::simulated_network;

// Objects whose digest the server names.
class HttpDigests : public ::testing::Test {
 protected:
  outcome read(const std::string& target) {
    outcome out = client_.read(target);
    EXPECT_EQ(client_.left_in_memory, 0U);
    return out;
  }

  testing::simulated_client client_;
  std::shared_ptr<simulated_network> net_ = client_.net;
  http_options& options_ = client_.options;
};

TEST_F(HttpDigests, ASmallObjectWithAWrongDigestIsFetchedOnceMoreBeforeAnyoneSeesIt) {
  const std::string content = numbered(200'000);
  const std::string digest =
      "Content-MD5: " + base64(digest_of(hash_algorithm::md5, content)) + "\r\n";
  int requests = 0;
  bool always = false;
  net_->serve("10.0.0.1", [&](const std::string& request) {
    std::string body = content;
    if (++requests == 1 || always) body[77] ^= 1;
    return answer(request, body, 0us, digest);
  });
  EXPECT_EQ(read("http://h/a").content, content);
  EXPECT_EQ(requests, 2);
  always = true;
  const auto out = read("http://h/a");
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::integrity);
  EXPECT_EQ(out.content, "");
}

TEST_F(HttpDigests, TheLastPieceOfALargeObjectWaitsForItsDigest) {
  const std::string content = numbered(6'000'000);
  const std::string digest =
      "Repr-Digest: sha-256=:" + base64(digest_of(hash_algorithm::sha256, content)) + ":\r\n";
  net_->serve("10.0.0.1", [&](const std::string& request) {
    std::string body = content;
    body[77] ^= 1;
    return answer(request, body, 0us, digest);
  });
  const auto out = read("http://h/a");
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::integrity);
  EXPECT_LT(out.content.size(), content.size());
}

class CheckedBytes : public ::testing::Test {
 protected:
  static expected_digest digest_for(const std::string& content) {
    return {hash_algorithm::md5, digest_of(hash_algorithm::md5, content), "a test"};
  }
  // All that may be given out now.
  std::string taken(checked_bytes& of) {
    std::string all;
    for (bytes piece = of.take(); !piece.empty(); piece = of.take()) {
      all += piece.text();
      is_in_place_ = piece.are_of(*share_);
    }
    return all;
  }
  bytes piece(const std::string& text) {
    buffer made = share_->try_acquire(text.size());
    std::ranges::copy(std::as_bytes(std::span(text)), made.data());
    return std::move(made).freeze(text.size());
  }

  std::shared_ptr<memory_share> share_ =
      std::make_shared<memory_share>("test", 8_MiB, default_host_allocator());
  bool is_in_place_ = false;  // the last piece taken
  static constexpr std::size_t end = checked_bytes::end_bytes;
};

TEST_F(CheckedBytes, OfALargeObjectNoMoreThanTheEndIsHeldAndNoBuffer) {
  const std::string content = numbered(300'000);
  for (const auto total :
       {std::optional<std::uint64_t>(content.size()), std::optional<std::uint64_t>()}) {
    checked_bytes checked(digest_for(content), 1000);
    std::string out;
    for (const std::size_t at : {0UL, 100'000UL, 200'000UL}) {
      checked.put(piece(content.substr(at, 100'000)), total);
      out += taken(checked);
      EXPECT_TRUE(is_in_place_);
      EXPECT_EQ(share_->in_use(), 0U);
      const std::size_t came = at + 100'000;
      EXPECT_EQ(out.size(), total && came < content.size() ? came : came - end);
    }
    EXPECT_TRUE(checked.finish());
    EXPECT_EQ(out + taken(checked), content);
  }
}

TEST_F(CheckedBytes, ASmallObjectIsHeldAsAWhole) {
  const std::string content = numbered(1000);
  checked_bytes checked(digest_for(content), 1000);
  for (const std::size_t at : {0UL, 500UL}) {
    checked.put(piece(content.substr(at, 500)), std::nullopt);
    EXPECT_EQ(taken(checked), "");
  }
  EXPECT_FALSE(checked.given_any());
  EXPECT_TRUE(checked.finish());
  EXPECT_EQ(taken(checked), content);
}

TEST_F(CheckedBytes, TheEndOfTheWrongBytesIsNeverGiven) {
  const std::string content = numbered(100'000);
  checked_bytes checked(digest_for(content + "x"), 1000);
  for (std::size_t at = 0; at < content.size(); at += 1000) {
    checked.put(piece(content.substr(at, 1000)), std::nullopt);
  }
  EXPECT_EQ(taken(checked), content.substr(0, content.size() - end));
  EXPECT_TRUE(checked.given_any());
  EXPECT_EQ(checked.finish().error().kind(), errc::integrity);
  EXPECT_EQ(taken(checked), "");
}

}  // namespace
}  // namespace millrace
