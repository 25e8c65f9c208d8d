// Servers drawn from seeds, whose object changes its LENGTH as well as its bytes: with every kind
// of framing, validators, ranges and faults, 416s and unstated lengths. A reader gets the object of
// one version, or the beginning of one and an error.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "engine/base/random.h"
#include "engine/base/units.h"
#include "engine/coroutines/scope.h"
#include "io/hashes.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::sent;

class draws {
 public:
  explicit draws(std::uint64_t seed) : random_(seed, purpose::fake_data) {}
  std::size_t below(std::size_t n) { return random_.below(static_cast<std::uint32_t>(n)); }
  bool chance(int percent) { return random_.below(100) < static_cast<std::uint32_t>(percent); }

 private:
  random_stream random_;
};

enum class framing { length, chunked, until_end, any };
enum class range_support { always, never, sometimes, whatever_if_range_says };

// A server with one object.
class odd_server {
 public:
  explicit odd_server(std::uint64_t seed) : draw_(seed) {
    const std::size_t versions = 1 + draw_.below(3);
    for (std::size_t v = 0; v < versions; ++v) contents_.push_back(content(v));
    validators_ = draw_.below(7);
    ranges_ = static_cast<range_support>(draw_.below(4));
    framing_ = static_cast<framing>(draw_.below(4));
    cut_ = draw_.chance(60) ? static_cast<int>(10 * draw_.below(6)) : 0;
    refused_ = draw_.chance(30) ? 20 : 0;
    changes_ = versions == 1 ? 0 : draw_.chance(50) ? 10 : 50;
    stalls_ = draw_.chance(20) ? 10 : 0;
    slow_ = draw_.chance(30) ? 20 : 0;
    tells_no_total_ = draw_.chance(20);
    tells_end_ = draw_.chance(50);
    has_digest_ = draw_.chance(25);
    has_pages_ = draw_.chance(10);
    gives_less_ = draw_.chance(10);
  }

  const std::vector<std::string>& contents() const { return contents_; }
  std::size_t requests() const { return requests_; }

  std::vector<sent> answer(const std::string& request) {
    ++requests_;
    if (draw_.chance(changes_)) version_ = draw_.below(contents_.size());
    if (draw_.chance(refused_)) return refusal();
    if (has_pages_ && draw_.chance(30)) return page();
    const std::string& all = contents_[version_];
    const auto range = honoured(request);
    if (range && range->begin >= all.size()) return beyond();
    std::string head = "HTTP/1.1 200 x\r\n";
    std::string body = all;
    if (range) {
      const std::uint64_t end = end_of(*range);
      body = all.substr(range->begin, end - range->begin);
      head = fmt::format("HTTP/1.1 206 x\r\nContent-Range: bytes {}-{}/{}\r\n", range->begin,
                         end - 1, tells_no_total_ ? "*" : std::to_string(all.size()));
    }
    return framed(head + fields(), body);
  }

 private:
  static constexpr std::size_t stamp = 8;

  // Every eight bytes state their version and position.
  std::string content(std::size_t version) {
    std::size_t size = 0;
    switch (draw_.below(5)) {
      case 0:
        size = draw_.below(2000) + 1;
        break;
      case 1:
        size = 65'536 * (1 + draw_.below(4));
        break;
      case 2:
        size = 512 * (1 + draw_.below(100));
        break;
      default:
        size = 1 + draw_.below(600'000);
    }
    if (draw_.chance(3)) size = 0;
    if (version > 0 && draw_.chance(40)) size = contents_.front().size();
    std::string text;
    for (std::size_t at = 0; at < size; at += stamp) {
      text += fmt::format("{}{:.>7}", static_cast<char>('A' + version), at);
    }
    text.resize(size);
    return text;
  }

  std::string tag() const {
    return fmt::format("{}\"v{}\"", validators_ == 1 ? "W/" : "", version_);
  }
  std::string date() const { return fmt::format("Sat, 01 Jan 2022 00:00:{:02} GMT", version_); }
  bool has_tag() const { return validators_ <= 2; }
  bool has_date() const { return validators_ >= 2 && validators_ <= 4; }

  std::string fields() {
    std::string out;
    if (has_tag()) out += "ETag: " + tag() + "\r\n";
    if (has_date()) out += "Last-Modified: " + date() + "\r\n";
    // An answer to If-Range may omit its date (RFC 9110, 15.3.7).
    if (validators_ == 4 && ranges_ != range_support::whatever_if_range_says && draw_.chance(30))
      out.clear();
    if (has_digest_) {
      const std::string raw = digest_of(hash_algorithm::crc32c, contents_[version_]);
      out += "Repr-Digest: crc32c=:" + base64(raw) + ":\r\n";
    }
    return out;
  }

  // The range to answer with, if the server does ranges and If-Range agrees.
  std::optional<byte_range> honoured(const std::string& request) {
    const bool ignores = ranges_ == range_support::never ||
                         (ranges_ == range_support::sometimes && draw_.chance(30));
    const auto range = testing::range_of(request, ~std::uint64_t{0});
    if (range) EXPECT_LT(range->begin, *range->end) << testing::field_of(request, "Range");
    if (ignores || !range) return std::nullopt;
    const std::string condition = testing::field_of(request, "If-Range");
    const bool agrees = condition.empty() || ranges_ == range_support::whatever_if_range_says ||
                        (has_tag() && condition == tag()) || (has_date() && condition == date());
    return agrees ? range : std::nullopt;
  }

  std::uint64_t end_of(byte_range range) {
    const std::uint64_t end = std::min<std::uint64_t>(*range.end, contents_[version_].size());
    const std::uint64_t n = end - range.begin;
    const bool less = gives_less_ && n > 1 && draw_.chance(50);
    return less ? range.begin + 1 + draw_.below(n - 1) : end;
  }

  std::vector<sent> refusal() {
    if (draw_.chance(50)) return {{1ms, "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"}};
    return {{1ms, "", draw_.chance(50) ? sent::end::fin : sent::end::reset}};
  }
  static std::vector<sent> page() {
    const std::string text = "<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>";
    return {
        {1ms, fmt::format("HTTP/1.1 200 x\r\nContent-Length: {}\r\n\r\n{}", text.size(), text)}};
  }
  std::vector<sent> beyond() {
    std::string head = "HTTP/1.1 416 x\r\n";
    if (tells_end_)
      head += fmt::format("Content-Range: bytes */{}\r\n", contents_[version_].size());
    return {{1ms, head + fields() + "Content-Length: 0\r\n\r\n"}};
  }

  std::vector<sent> framed(std::string head, const std::string& body) {
    const framing how = framing_ == framing::any ? static_cast<framing>(draw_.below(3)) : framing_;
    if (how == framing::length) head += fmt::format("Content-Length: {}\r\n", body.size());
    if (how == framing::chunked) head += "Transfer-Encoding: chunked\r\n";
    const auto gap = draw_.chance(slow_) ? (draw_.chance(50) ? 300'000us : 1'500'000us)
                                         : (draw_.chance(30) ? 0us : 200us);
    std::vector<sent> out{{gap, head + "\r\n"}};
    constexpr std::size_t piece = 30'000;
    for (std::size_t at = 0; at < body.size(); at += piece) {
      const std::string bytes = body.substr(at, piece);
      out.push_back({gap, how == framing::chunked
                              ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes)
                              : bytes});
    }
    if (how == framing::chunked) out.push_back({gap, "0\r\n\r\n"});
    if (how == framing::until_end) out.back().ends = sent::end::fin;
    if (out.size() > 1) troubled(out, how);
    return out;
  }

  void troubled(std::vector<sent>& answer, framing how) {
    const std::size_t left = 1 + draw_.below(answer.size() - 1);
    if (draw_.chance(cut_)) {
      answer.resize(left);
      const bool in_order = how != framing::until_end && draw_.chance(50);
      answer.back().ends = in_order ? sent::end::fin : sent::end::reset;
    } else if (draw_.chance(stalls_)) {
      answer.resize(left);
      answer.back().ends = sent::end::none;
    }
  }

  draws draw_;
  std::vector<std::string> contents_;
  std::size_t version_ = 0;
  std::size_t requests_ = 0;
  std::size_t validators_ = 0;  // 0 to 2: an ETag, weak for 1; 2 to 4: a date, at times for 4
  range_support ranges_{};
  framing framing_{};
  // Percent of the answers.
  int cut_ = 0;
  int refused_ = 0;
  int changes_ = 0;
  int stalls_ = 0;
  int slow_ = 0;
  bool tells_no_total_ = false;
  bool tells_end_ = false;
  bool has_digest_ = false;
  bool has_pages_ = false;
  bool gives_less_ = false;
};

struct reading {
  byte_range range;
  testing::outcome out;
};

class HttpOracle : public ::testing::Test {
 protected:
  static awaitable<void> read_all(testing::simulated_client* client,
                                  std::shared_ptr<http_stack> stack, std::vector<reading>* all) {
    scope readers(client->context.get_executor());
    for (reading& r : *all) {
      readers.spawn(client->read_all(stack, parse_url("http://h/a").value(), r.range, &r.out));
    }
    co_await readers.join();
  }

  static void draw_options(draws& draw, testing::simulated_client& client) {
    constexpr std::array splits{1, 2, 3, 5};
    client.options.split =
        draw.chance(30) ? std::nullopt : std::optional(splits.at(draw.below(splits.size())));
    client.options.part_bytes = draw.chance(70) ? 16_KiB * (1 + draw.below(20)) : 0;
    client.options.attempts = 1 + static_cast<int>(draw.below(6));
    client.options.backoff = 10ms;
    client.options.connections = 1 + static_cast<int>(draw.below(6));
    client.options.hedge = draw.chance(50) ? 0.5 : 0.05;
    constexpr std::array<std::size_t, 5> chunks{4_KiB, 16_KiB, 64_KiB, 60'000, 256_KiB};
    const std::size_t chunk = client.source.chunk_bytes = chunks.at(draw.below(chunks.size()));
    client.source.read_ahead = 1 + static_cast<int>(draw.below(8));
    const std::size_t little = std::max(2 * chunk, 2 * page_bytes) + draw.below(5) * chunk;
    client.memory_bytes = draw.chance(50) ? little : 8_MiB;
    client.keeps_one = draw.chance(50);
  }

  static std::string_view part_of(const std::string& content, byte_range range) {
    const auto begin = std::min<std::uint64_t>(range.begin, content.size());
    const auto end = std::min<std::uint64_t>(range.end.value_or(content.size()), content.size());
    return std::string_view(content).substr(begin, std::max(end, begin) - begin);
  }

  static void judge(const reading& r, const odd_server& server) {
    SCOPED_TRACE(fmt::format("range {}-{}", r.range.begin, r.range.end.value_or(0)));
    EXPECT_TRUE(r.out.ended);
    const auto is_it = [&](const std::string& c) { return part_of(c, r.range) == r.out.content; };
    const auto begins_so = [&](const std::string& c) {
      return part_of(c, r.range).starts_with(r.out.content);
    };
    if (r.out.failed) {
      EXPECT_TRUE(std::ranges::any_of(server.contents(), begins_so))
          << r.out.content.size() << " bytes, then " << r.out.failed->message();
    } else {
      EXPECT_TRUE(std::ranges::any_of(server.contents(), is_it))
          << r.out.content.size() << " bytes";
    }
  }
};

TEST_F(HttpOracle, WhatIsReadIsOfOneVersionWhateverServersDo) {
  int whole = 0;
  for (const std::uint64_t seed : testing::seeds(600)) {
    SCOPED_TRACE(fmt::format("TEST_SEED={}", seed));
    draws draw(seed);
    testing::simulated_client client;
    odd_server server(seed + (std::uint64_t{1} << 32));
    client.net->serve("10.0.0.1", [&](const std::string& q) { return server.answer(q); });
    if (draw.chance(50)) client.net->unsettle(seed);
    draw_options(draw, client);
    std::vector<reading> all(draw.chance(50) ? 1 : 1 + draw.below(5));
    for (reading& r : all) {
      if (draw.chance(30)) r.range.begin = draw.below(200'000);
      if (draw.chance(30)) r.range.end = r.range.begin + draw.below(300'000);
    }
    client.time.run(read_all(&client, client.make_stack(), &all), 100h);
    EXPECT_EQ(client.left_in_memory, 0U);
    EXPECT_LT(server.requests(), 3000U);
    for (const reading& r : all) {
      judge(r, server);
      whole += r.out.failed ? 0 : 1;
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace millrace
