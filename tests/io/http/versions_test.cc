// A server whose object changes at every request, or from some request on, in every combination of
// what it says about it: the bytes given out are of one version, or there is an error.
#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "io/hashes.h"
#include "io/http/transfer.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::outcome;
using testing::sent;

constexpr std::size_t object_bytes = 400'000;

// digest_of_whole: as Content-MD5, which an answer with a part of the object does not have.
enum class names {
  nothing,
  weak_tag,
  strong_tag,
  date,
  digest,
  tag_and_date,
  tag_then_nothing,
  digest_of_whole,
  empty_tag,  // and a blank date: these identify nothing
  tag_with_tab,
};
constexpr int all_names = 10;
enum class lengths { told, chunked, by_end };
// at_times: by some of the servers under one name.
enum class ranges { honoured, without_if_range, ignored, shifted, short_ones, at_times };
enum class changes { never, once, always };

struct behaviour {
  names named;
  lengths length;
  ranges range;
  changes change;
  bool cuts;
};

// Every 8 bytes state their version and position.
std::string content_of(int version) {
  std::string out;
  out.reserve(object_bytes);
  for (std::size_t at = 0; at < object_bytes; at += 8) {
    out += static_cast<char>('A' + version % 26);
    std::string place = std::to_string(at);
    out += std::string(7 - place.size(), '.') + place;
  }
  out.resize(object_bytes);
  return out;
}

const std::string& version_text(int version) {
  static std::vector<std::string> all = [] {
    std::vector<std::string> made;
    for (int v = 0; v < 26; ++v) made.push_back(content_of(v));
    return made;
  }();
  return all.at(static_cast<std::size_t>(version % 26));
}

std::string digest_text(int version) {
  static std::vector<std::string> all = [] {
    std::vector<std::string> made;
    for (int v = 0; v < 26; ++v) {
      made.push_back(base64(digest_of(hash_algorithm::crc32c, version_text(v))));
    }
    return made;
  }();
  return all.at(static_cast<std::size_t>(version % 26));
}

class changing_server {
 public:
  explicit changing_server(behaviour how, std::uint64_t seed)
      : how_(how), random_(seed, purpose::fake_data) {}

  std::vector<sent> answer(const std::string& request) {
    const int n = requests_++;
    if (how_.change == changes::always) version_ = n;
    if (how_.change == changes::once && n >= 2) version_ = 1;
    const std::string& content = version_text(version_);
    auto range = testing::range_of(request, content.size());
    const std::string condition = testing::field_of(request, "If-Range");
    const bool heeds = how_.range != ranges::without_if_range;
    const bool is_ignored = how_.range == ranges::at_times && random_.uniform() < 0.3;
    if (how_.range == ranges::ignored || is_ignored) range.reset();
    if (heeds && !condition.empty() && condition != tag() && condition != date()) range.reset();
    std::string head = "HTTP/1.1 200 x\r\n";
    std::string body = content;
    if (range) {
      if (how_.range == ranges::shifted && range->begin > 0) --range->begin;
      const std::uint64_t half = range->begin + (*range->end - range->begin) / 2;
      if (how_.range == ranges::short_ones && half > range->begin) range->end = half;
      head = fmt::format("HTTP/1.1 206 x\r\nContent-Range: bytes {}-{}/{}\r\n", range->begin,
                         *range->end - 1, content.size());
      body = content.substr(range->begin, *range->end - range->begin);
    }
    return framed(head + fields(n, range.has_value()), body);
  }
  int requests() const { return requests_; }

 private:
  std::string tag() const {
    return fmt::format("{}\"v{}\"", how_.named == names::weak_tag ? "W/" : "", version_);
  }
  std::string date() const {
    return fmt::format("Sat, 01 Jan 2022 00:{:02}:{:02} GMT", version_ / 60 % 60, version_ % 60);
  }
  std::string fields(int request, bool is_part) const {
    const std::string etag = "ETag: " + tag() + "\r\n";
    const std::string modified = "Last-Modified: " + date() + "\r\n";
    switch (how_.named) {
      case names::nothing:
        return "";
      case names::weak_tag:
      case names::strong_tag:
        return etag;
      case names::date:
        return modified;
      case names::digest_of_whole:
        if (is_part) return "";
        [[fallthrough]];
      case names::digest:
        return "Repr-Digest: crc32c=:" + digest_text(version_) + ":\r\n";
      case names::tag_and_date:
        return etag + modified;
      case names::tag_then_nothing:
        return request == 0 ? etag : "";
      case names::empty_tag:
        return "ETag:\r\nLast-Modified: \r\n";
      case names::tag_with_tab:
        return fmt::format("ETag: \"v\t{}\"\r\n", version_);
    }
    return "";
  }

  std::vector<sent> framed(std::string head, const std::string& body) {
    std::vector<sent> out;
    const auto gap = random_.uniform() < 0.3 ? 0us : 200us;
    const auto piece = [&](std::string bytes) { out.push_back({gap, std::move(bytes)}); };
    if (how_.length == lengths::told) head += fmt::format("Content-Length: {}\r\n", body.size());
    if (how_.length == lengths::chunked) head += "Transfer-Encoding: chunked\r\n";
    piece(head + "\r\n");
    for (std::size_t at = 0; at < body.size(); at += 30'000) {
      const std::string some = body.substr(at, 30'000);
      piece(how_.length == lengths::chunked ? fmt::format("{:x}\r\n{}\r\n", some.size(), some)
                                            : some);
    }
    if (how_.length == lengths::chunked) piece("0\r\n\r\n");
    out.back().ends = how_.length == lengths::by_end ? sent::end::fin : sent::end::none;
    // A cut can be seen; an end without an announced length must not be taken for one.
    if (how_.cuts && random_.uniform() < 0.4 && out.size() > 2) {  // perhaps after its head
      out.resize(1 +
                 static_cast<std::size_t>(random_.uniform() * static_cast<double>(out.size() - 1)));
      out.back().ends = sent::end::reset;
      // Sometimes everything is there at once: the reader sees the start and the cut together.
      if (random_.uniform() < 0.5) {
        for (std::size_t i = 1; i < out.size(); ++i) out[0].bytes += out[i].bytes;
        out[0].ends = sent::end::reset;
        out.resize(1);
      }
    }
    return out;
  }

  behaviour how_;
  random_stream random_;
  int requests_ = 0;
  int version_ = 0;
};

struct tally {
  int whole = 0;
  int failed = 0;
};

void read_once(const behaviour& how, std::uint64_t begin, int split, bool is_tight,
               std::uint64_t seed, tally& all) {
  testing::simulated_client client;
  changing_server server(how, seed);
  client.net->serve("10.0.0.1", [&](const std::string& r) { return server.answer(r); });
  client.options.split = split;
  if (split == 0) client.options.split = std::nullopt;
  client.options.part_bytes = 64_KiB;
  client.options.attempts = 4;
  // With this memory, a part is given out before the whole has arrived.
  if (is_tight) client.memory_bytes = 512_KiB;
  const outcome out = client.read("http://h/a", {.begin = begin, .end = {}});
  EXPECT_TRUE(out.ended);
  EXPECT_LT(server.requests(), 200);
  bool of_one = out.content.empty();
  for (int v = 0; v < 26 && !of_one; ++v) {
    of_one = version_text(v).compare(begin, out.content.size(), out.content) == 0;
  }
  const bool is_whole = out.content.size() == object_bytes - begin;
  EXPECT_TRUE(of_one) << "bytes of two versions";
  EXPECT_TRUE(out.failed || is_whole) << "less than the object, without an error";
  ++(out.failed ? all.failed : all.whole);
}

TEST(HttpVersions, BytesOfTwoVersionsAreNeverGivenForOne) {
  tally all;
  for (const std::uint64_t seed : testing::seeds(1)) {
    for (int i = 0; i < all_names * 3 * 6 * 3 * 2 * 2 * 2; ++i) {
      if (!testing::is_taken(static_cast<std::uint64_t>(i))) continue;
      int rest = i;
      const auto next = [&](int of) { return std::exchange(rest, rest / of) % of; };
      const behaviour how{.named = static_cast<names>(next(all_names)),
                          .length = static_cast<lengths>(next(3)),
                          .range = static_cast<ranges>(next(6)),
                          .change = static_cast<changes>(next(3)),
                          .cuts = next(2) == 1};
      const std::uint64_t begin = next(2) == 0 ? 0 : 100'000;
      const int split = next(2) == 0 ? 0 : 4;
      const bool is_tight = i / all_names % 2 == 1;
      SCOPED_TRACE(
          fmt::format("TEST_SEED={}: case {}, names {}, length {}, range {}, change {}, "
                      "cuts {}, begin {}, split {}, tight {}",
                      seed, i, static_cast<int>(how.named), static_cast<int>(how.length),
                      static_cast<int>(how.range), static_cast<int>(how.change), how.cuts, begin,
                      split, is_tight));
      read_once(how, begin, split, is_tight, seed * 10'000 + static_cast<std::uint64_t>(i), all);
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(all.whole, all.failed / 2);
}

// The head of the first answer allows the other parts to start. Its connection ends before the
// first byte of its body, or accepts no more, and the object is replaced meanwhile.
TEST(HttpVersions, TheVersionThatTheFirstHeadNamesIsThatOfAllParts) {
  for (const int split : {0, 2, 4}) {
    for (const bool is_replaced : {true, false}) {
      SCOPED_TRACE(fmt::format("split {}, replaced {}", split, is_replaced));
      testing::simulated_client client;
      int requests = 0;
      client.net->serve("10.0.0.1", [&](const std::string& request) {
        const int n = requests++;
        const int version = is_replaced && n > 0 && request.find("Range: bytes=0-") != request.npos;
        const std::string tag = fmt::format("\"v{}\"", version);
        const std::string condition = testing::field_of(request, "If-Range");
        const bool is_whole = !condition.empty() && condition != tag;
        auto pieces = testing::answer(is_whole ? "" : request, version_text(version), 0us, "",
                                      "ETag: " + tag + "\r\n");
        if (n == 0) pieces = {pieces[0], {.after = 400ms, .bytes = {}, .ends = sent::end::reset}};
        return pieces;
      });
      client.options.split = split;
      if (split == 0) client.options.split = std::nullopt;
      client.options.part_bytes = 64_KiB;
      client.options.attempts = 3;
      const outcome out = client.read("http://h/a");
      if (is_replaced) {
        ASSERT_TRUE(out.failed);
        EXPECT_EQ(out.failed->kind(), errc::changed);
        EXPECT_EQ(out.content, "");
      } else {
        EXPECT_FALSE(out.failed);
        EXPECT_TRUE(out.content == version_text(0));
      }
    }
  }
}

// The same for the algorithm alone, whatever the length of the other object.
TEST(HttpVersions, TheHeadOfAPartBindsItToTheVersion) {
  const http_options options{.attempts = 3, .backoff = 100ms};
  for (const std::uint64_t length : {90U, 100U, 120U}) {
    for (const bool is_set_aside : {true, false}) {
      http_transfer t(http_object(parse_url("http://h/a.tar").value()), {.begin = 0, .end = 50}, {},
                      options, real_time(), 1);
      t.on_head({.status = 206,
                 .content_length = 50,
                 .fields = {{"Content-Range", "bytes 0-49/100"}, {"ETag", "\"v1\""}}});
      auto next = is_set_aside ? t.on_set_aside() : t.on_failure(error(errc::cut, "").retryable());
      while (std::holds_alternative<http_transfer::ask_again>(next)) {
        EXPECT_EQ(find_field(t.request_fields(), "if-range"), "\"v1\"");
        next = t.on_head({.status = 200, .content_length = length, .fields = {{"ETag", "\"v2\""}}});
      }
      ASSERT_TRUE(std::holds_alternative<error>(next));
      EXPECT_EQ(std::get<error>(next).kind(), errc::changed);
    }
  }
}

// An object without a version is read by one request from its start; bytes of the first part are
// dropped.
TEST(HttpVersions, WhatNamesNoVersionIsReadByOneRequest) {
  testing::simulated_client client;
  changing_server server({names::nothing, lengths::told, ranges::honoured, changes::always, false},
                         1);
  client.net->serve("10.0.0.1", [&](const std::string& r) { return server.answer(r); });
  client.options.split = std::nullopt;
  client.options.part_bytes = 128_KiB;
  const auto stack = client.make_stack();
  for (const int requests : {2, 3, 4}) {  // from the second time on, the server is known
    outcome out;
    client.time.run(client.read_all(stack, parse_url("http://h/a").value(), {}, &out));
    EXPECT_FALSE(out.failed);
    EXPECT_EQ(out.content, version_text(requests - 1));
    EXPECT_EQ(server.requests(), requests);
  }
}

// A passing failure of a proxy or a store, in each form.
TEST(HttpVersions, AnAnswerThatIsNotOfTheObjectIsAskedForAgain) {
  using take_body = http_transfer::take_body;
  using ask_again = http_transfer::ask_again;
  using finished = http_transfer::finished;
  const object_version known{.total = 100, .etag = "\"v1\"", .last_modified = {}};
  const auto whole = [](std::uint64_t length, const char* etag = "\"v1\"") {
    return response_head{.status = 200, .content_length = length, .fields = {{"ETag", etag}}};
  };
  const auto part = [](const char* range, const char* etag = "\"v1\"") {
    return response_head{
        .status = 206, .content_length = 40, .fields = {{"Content-Range", range}, {"ETag", etag}}};
  };
  const std::vector<response_head> others{
      whole(57, "\"page\""),
      whole(100, "\"page\""),
      whole(57),
      {.status = 200, .content_length = 57, .fields = {}},
      {.status = 200, .content_length = {}, .fields = {}},
      part("bytes 60-99/120"),
      part("bytes 60-99/100", "\"v2\""),
      {.status = 412, .content_length = {}, .fields = {}},
      {.status = 416, .content_length = {}, .fields = {{"Content-Range", "bytes */10"}}},
  };
  const http_options options{.attempts = 3, .backoff = 100ms};
  for (std::size_t i = 0; i < others.size(); ++i) {
    for (const bool is_one_of_parts : {false, true}) {
      SCOPED_TRACE(fmt::format("answer {} to {}", i, is_one_of_parts ? "a part" : "a resume"));
      http_transfer t(http_object(parse_url("http://h/a.tar").value()),
                      is_one_of_parts ? byte_range{.begin = 60, .end = 100} : byte_range(),
                      is_one_of_parts ? known : object_version(), options, real_time(), 1);
      if (!is_one_of_parts) {
        t.on_head(whole(100));
        t.on_body(60);
        t.gave_out();
        t.on_end();
      }
      const auto again = t.on_head(others[i]);
      ASSERT_TRUE(std::holds_alternative<ask_again>(again));
      EXPECT_TRUE(std::get<ask_again>(again).is_retry);
      EXPECT_FALSE(std::get<ask_again>(again).from_begin);
      EXPECT_EQ(find_field(t.request_fields(), "if-range"), "\"v1\"");
      EXPECT_TRUE(std::holds_alternative<take_body>(t.on_head(part("bytes 60-99/100"))));
      EXPECT_EQ(t.on_body(40), 0U);
      EXPECT_TRUE(std::holds_alternative<finished>(t.on_end()));
    }
  }
}

}  // namespace
}  // namespace millrace
