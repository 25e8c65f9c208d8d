#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "engine/base/random.h"
#include "engine/base/units.h"
#include "io/hashes.h"
#include "io/http/checked_bytes.h"
#include "tests/support/http_reads.h"
#include "tests/support/numbered.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::answer;
using testing::numbered;
using testing::sent;

// Objects whose digest the server sends.
class HttpDigests : public testing::http_reads {};

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

enum class is_wrong { never, once, always };

// One object with a random framing, validator and digest. Until its first byte is requested a
// second time, or always, other bytes come under its digest.
class wrong_bytes_server {
 public:
  wrong_bytes_server(is_wrong when, std::size_t size, std::uint64_t seed)
      : when_(when), random_(seed, purpose::fake_data), first_{.content = numbered(size)} {
    framing_ = next(3);
    does_ranges_ = next(3) > 0;
    tells_total_ = next(3) > 0;
    algorithm_ = std::array{hash_algorithm::crc32c, hash_algorithm::sha256}.at(next(2));
    first_.names = names(next(3), 1);
    first_.digest = digest(first_.content);
    then_ = first_;
    if (when_ != is_wrong::never && next(3) == 0) {  // another version
      then_.content = 'x' + numbered(next(2) == 0 ? size : next(400'000));
      then_.names = names(next(3), 2);
      then_.digest = digest(then_.content);
    }
    if (when_ != is_wrong::never) first_.content = damaged(first_.content);
    if (when_ == is_wrong::always) then_.content = damaged(then_.content);
  }

  std::vector<sent> answer(const std::string& request) {
    const auto asked = testing::range_of(request, ~std::uint64_t{0});
    if ((!asked || asked->begin == 0) && begun_++ > 0) first_ = then_;
    const std::string& all = first_.content;
    const bool is_part = asked && does_ranges_ && !all.empty();
    if (is_part && asked->begin >= all.size()) {
      return {{1ms, fmt::format("HTTP/1.1 416 x\r\nContent-Range: bytes */{}\r\n{}"
                                "Content-Length: 0\r\n\r\n",
                                all.size(), first_.names)}};
    }
    if (!is_part) return framed("HTTP/1.1 200 x\r\n", all);
    const auto end = std::min<std::uint64_t>(*asked->end, all.size());
    return framed(fmt::format("HTTP/1.1 206 x\r\nContent-Range: bytes {}-{}/{}\r\n", asked->begin,
                              end - 1, tells_total_ ? std::to_string(all.size()) : "*"),
                  all.substr(asked->begin, end - asked->begin));
  }

  const std::string& right() const {
    return when_ == is_wrong::never ? first_.content : then_.content;
  }

 private:
  struct object {
    std::string content;
    std::string names;
    std::string digest;
  };

  std::size_t next(std::size_t of) { return random_.below(static_cast<std::uint32_t>(of)); }
  static std::string names(std::size_t how, int version) {
    if (how == 0) return "";
    return how == 1 ? fmt::format("ETag: \"v{}\"\r\n", version)
                    : fmt::format("Last-Modified: Sat, 01 Jan 2022 00:00:0{} GMT\r\n", version);
  }
  std::string digest(const std::string& of) const {
    return fmt::format("Repr-Digest: {}=:{}:\r\n",
                       algorithm_ == hash_algorithm::crc32c ? "crc32c" : "sha-256",
                       base64(digest_of(algorithm_, of)));
  }
  std::string damaged(std::string content) {
    const std::size_t how = content.empty() ? 0 : next(4);
    if (how == 0) return content + numbered(1 + next(100'000));
    if (how == 1) return "";
    if (how == 2) return content.substr(0, next(content.size()));
    content[next(content.size())] ^= 1;
    return content;
  }
  std::vector<sent> framed(std::string head, const std::string& body) const {
    head += first_.names + first_.digest;
    if (framing_ == 0)
      return {{1ms, fmt::format("{}Content-Length: {}\r\n\r\n{}", head, body.size(), body)}};
    if (framing_ == 1) return {{1ms, head + "\r\n" + body, sent::end::fin}};
    const std::string chunk = body.empty() ? "" : fmt::format("{:x}\r\n{}\r\n", body.size(), body);
    return {{1ms, head + "Transfer-Encoding: chunked\r\n\r\n" + chunk + "0\r\n\r\n"}};
  }

  is_wrong when_;
  random_stream random_;
  std::size_t framing_ = 0;
  bool does_ranges_ = false;
  bool tells_total_ = false;
  hash_algorithm algorithm_{};
  object first_;
  object then_;
  int begun_ = 0;
};

// Nothing from the first transfer affects the second: neither its length, nor its version, nor its
// digest.
TEST(HttpWrongDigests, WrongBytesAreForgottenAndFetchedOnceMore) {
  constexpr std::array<std::size_t, 7> sizes{0, 1, 1000, 65'536, 65'537, 200'000, 700'000};
  int wrong = 0;
  for (const std::uint64_t seed : testing::seeds(200)) {
    random_stream draw(seed, purpose::shuffle);
    testing::simulated_client client;
    const auto when = static_cast<is_wrong>(draw.below(3));
    const std::size_t size = sizes.at(draw.below(sizes.size()));
    const int split = std::array{0, 1, 2, 4}.at(draw.below(4));
    client.options.split = split == 0 ? std::nullopt : std::optional(split);
    client.options.part_bytes = draw.below(2) == 0 ? 0 : 64_KiB;
    SCOPED_TRACE(fmt::format("TEST_SEED={}: {} bytes, wrong {}, split {}, parts of {}", seed, size,
                             static_cast<int>(when), split, client.options.part_bytes));
    wrong_bytes_server server(when, size, seed);
    client.net->serve("10.0.0.1", [&](const std::string& q) { return server.answer(q); });
    if (draw.below(4) == 0) client.net->unsettle(seed);
    client.version = std::make_shared<opened_version>();
    for (int times = 0; times < 2; ++times) {  // opened again, it is the same object
      const auto out = client.read("http://h/a");
      if (when == is_wrong::always) {
        ++wrong;
        ASSERT_TRUE(out.failed);
        EXPECT_EQ(out.failed->kind(), errc::integrity) << out.failed->message();
        EXPECT_EQ(out.content, "");
        break;
      }
      ASSERT_FALSE(out.failed) << out.failed->message();
      EXPECT_TRUE(out.content == server.right()) << out.content.size();
    }
    EXPECT_EQ(client.left_in_memory, 0U);
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_TRUE(wrong > 0 || std::getenv("TEST_SEED") != nullptr);
}

class CheckedBytes : public ::testing::Test {
 protected:
  static expected_digest digest_for(const std::string& content) {
    return {hash_algorithm::md5, digest_of(hash_algorithm::md5, content), "a test"};
  }
  // All bytes that may be given out now.
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
