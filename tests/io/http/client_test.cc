// The real client and the real transfers, on one thread, over a simulated network in simulated
// time.
#include "io/http/client.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/log.h"
#include "io/hashes.h"
#include "io/http/source.h"
#include "tests/support/numbered.h"
#include "tests/support/simulated_network.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::numbered;
using testing::sent;
using testing::simulated_network;

struct outcome {
  std::string content;
  std::optional<error> failed;
};

// The range that a request asks for.
std::optional<byte_range> range_of(const std::string& request, std::uint64_t size) {
  const auto at = request.find("Range: bytes=");
  if (at == std::string::npos) return std::nullopt;
  const std::string text = request.substr(at + 13, request.find('\r', at) - at - 13);
  byte_range r{.begin = std::stoull(text), .end = size};
  if (!text.ends_with('-'))
    r.end = std::min<std::uint64_t>(size, std::stoull(text.substr(text.find('-') + 1)) + 1);
  return r;
}

// An answer with all that was asked for, as pieces of 64 KiB, each `gap` after the one before.
std::vector<sent> answer(const std::string& request, const std::string& content,
                         std::chrono::microseconds gap = 0us, const std::string& more = {}) {
  const auto range = range_of(request, content.size());
  const std::string body =
      range ? content.substr(range->begin, *range->end - range->begin) : content;
  std::string head = range ? fmt::format("HTTP/1.1 206 x\r\nContent-Range: bytes {}-{}/{}\r\n",
                                         range->begin, *range->end - 1, content.size())
                           : "HTTP/1.1 200 x\r\n";
  head += fmt::format("ETag: \"v1\"\r\nContent-Length: {}\r\n{}\r\n", body.size(), more);
  std::vector<sent> out{{.after = 1ms, .bytes = head}};
  constexpr std::size_t piece = 65'536;
  for (std::size_t i = 0; i < body.size(); i += piece) {
    out.push_back({.after = gap, .bytes = body.substr(i, piece)});
  }
  return out;
}

class HttpClient : public ::testing::Test {
 protected:
  HttpClient() {
    set_log_level(log_level::quiet);
    net_->add("h", {"10.0.0.1"});
  }
  ~HttpClient() override { set_log_level(log_level::notice); }

  outcome read(const std::string& target, std::uint64_t offset = 0) {
    outcome out;
    auto stack = std::make_shared<http_stack>(options_, net_, time_);
    time_.run(read_all(stack, parse_url(target).value(), offset, &out));
    return out;
  }

  awaitable<void> read_all(std::shared_ptr<http_stack> stack, url target, std::uint64_t offset,
                           outcome* out) {
    auto memory = std::make_shared<memory_share>("test", memory_bytes_, default_host_allocator());
    scope tasks(context_.get_executor());
    {
      source_context context{threads_, threads_.io(0), tasks, memory, source_, counters_};
      http_object object(target);
      object.secrets = stack->secrets_for(target);
      auto source =
          http_object_source(context, stack, std::move(object), {.begin = offset, .end = {}});
      for (;;) {
        auto piece = co_await source->read();
        if (!piece) out->failed = piece.error();
        if (!piece || piece->empty()) break;
        out->content += piece->text();
      }
    }
    tasks.stop();
    co_await tasks.join();
    EXPECT_EQ(memory->in_use(), 0U);
  }

  void survive_chaos(std::uint64_t seed) {
    const std::string content = numbered(1'500'000 + 1000 * seed);
    random_stream random(seed, purpose::fake_data);
    int requests = 0;
    net_->serve("10.0.0.1", [&](const std::string& request) {
      ++requests;
      const double luck = random.uniform();
      if (luck < 0.05)
        return std::vector<sent>{{.bytes = "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"}};
      if (luck < 0.08) return std::vector<sent>{{.bytes = "HTT", .ends = sent::end::fin}};
      if (luck < 0.10) return std::vector<sent>{{.bytes = {}, .ends = sent::end::reset}};
      auto pieces = luck < 0.15 ? answer("", content) : answer(request, content, 500us);
      for (std::size_t i = 1; i < pieces.size(); ++i) {
        const double fate = random.uniform();
        if (fate >= 0.1) continue;
        pieces.resize(i + 1);
        pieces[i].bytes.resize(pieces[i].bytes.size() / 2);
        if (fate < 0.05) pieces[i].ends = sent::end::fin;
        if (fate >= 0.05 && fate < 0.09) pieces[i].ends = sent::end::reset;
        break;  // else a stall
      }
      return pieces;
    });
    options_.split = 1 + static_cast<int>(seed % 4);
    options_.part_bytes = 256_KiB;
    options_.attempts = 50;
    const auto begun = time_.now();
    const auto out = read("http://h/a");
    EXPECT_FALSE(out.failed);
    EXPECT_TRUE(out.content == content);
    EXPECT_LT(requests, 400);
    EXPECT_LT(time_.now() - begun, 1h);
  }

  asio::io_context context_;
  testing::simulated_time time_{context_};
  std::shared_ptr<simulated_network> net_ = std::make_shared<simulated_network>(time_);
  runtime threads_{{.cpu_threads = 1}};
  http_options options_{.split = 1};
  source_options source_{.chunk_bytes = 64_KiB};
  source_counters counters_;
  std::size_t memory_bytes_ = 8_MiB;
};

TEST_F(HttpClient, AWholeObjectAndItsParts) {
  const std::string content = numbered(3'000'000);
  std::vector<std::string> requests;
  net_->serve("10.0.0.1", [&](const std::string& request) {
    requests.push_back(request);
    return answer(request, content);
  });
  EXPECT_EQ(read("http://h/a").content, content);
  EXPECT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].find("Range:"), std::string::npos);
  EXPECT_EQ(read("http://h/a", 1'000'000).content, content.substr(1'000'000));

  requests.clear();
  options_.split = 4;
  options_.part_bytes = 256_KiB;
  EXPECT_EQ(read("http://h/a").content, content);
  EXPECT_EQ(requests.size(), 12U);
  EXPECT_EQ(read("http://h/a", 123'456).content, content.substr(123'456));
}

TEST_F(HttpClient, PartsHideTheWaitForTheirFirstBytes) {
  const std::string content = numbered(4 << 20);
  net_->serve("10.0.0.1", [&](const std::string& request) {
    auto pieces = answer(request, content);
    pieces[0].after = 100ms;
    return pieces;
  });
  options_.part_bytes = 256_KiB;
  options_.split = 8;
  const auto begun = time_.now();
  EXPECT_EQ(read("http://h/a").content, content);
  EXPECT_LT(time_.now() - begun, 500ms);  // sixteen parts, one after the other: 1.6 s
}

// A server that gives each connection 16 MiB/s: one is not enough.
TEST_F(HttpClient, MoreRequestsAreMadeWhereTheyBringMore) {
  const std::string content = numbered(64 << 20);
  net_->serve("10.0.0.1",
              [&](const std::string& request) { return answer(request, content, 4ms); });
  options_.split = std::nullopt;
  source_.chunk_bytes = 256_KiB;
  memory_bytes_ = 64_MiB;
  const auto begun = time_.now();
  EXPECT_EQ(read("http://h/a").content.size(), content.size());
  EXPECT_LT(time_.now() - begun, 1500ms);  // by one connection: 4 s
}

// The first request takes its memory bit by bit; parts that are fetched behind it must not take it
// all.
TEST_F(HttpClient, TheFirstRequestIsNotStarvedByThePartsBehindIt) {
  const std::string content = numbered(64 << 20);
  int requests = 0;
  net_->serve("10.0.0.1", [&](const std::string& request) {
    return answer(request, content, ++requests == 1 ? 20ms : 10us);
  });
  options_.split = std::nullopt;
  source_.chunk_bytes = 64_KiB;
  memory_bytes_ = 4_MiB;
  EXPECT_EQ(read("http://h/a").content, content);
}

TEST_F(HttpClient, PartsFitIntoLittleMemory) {
  const std::string content = numbered(4 << 20);
  net_->serve("10.0.0.1",
              [&](const std::string& request) { return answer(request, content, 1ms); });
  options_.split = 16;
  memory_bytes_ = 512_KiB;
  EXPECT_EQ(read("http://h/a").content, content);
}

TEST_F(HttpClient, AServerThatIgnoresRangesIsReadInOneStream) {
  const std::string content = numbered(2'000'000);
  int requests = 0;
  net_->serve("10.0.0.1", [&](const std::string&) {
    ++requests;
    return answer("", content);
  });
  options_.split = 8;
  options_.part_bytes = 256_KiB;
  EXPECT_EQ(read("http://h/a").content, content);
  EXPECT_EQ(requests, 1);
}

TEST_F(HttpClient, TriesTheNextAddressSideBySide) {
  const std::string content = numbered(1000);
  net_->add("two", {"2001:db8::1", "10.0.0.1"});
  net_->never_answer("2001:db8::1");
  net_->serve("10.0.0.1", [&](const std::string& request) { return answer(request, content); });
  const auto begun = time_.now();
  EXPECT_EQ(read("http://two/a").content, content);
  EXPECT_LT(time_.now() - begun, 400ms);
  net_->add("three", {"10.0.0.7", "10.0.0.8", "10.0.0.1"});
  net_->refuse("10.0.0.7");
  net_->refuse("10.0.0.8");
  const auto again = time_.now();
  EXPECT_EQ(read("http://three/a").content, content);
  EXPECT_LT(time_.now() - again, 100ms);
}

TEST_F(HttpClient, AStalledServerIsGivenUpWithinItsTimers) {
  net_->serve("10.0.0.1", [](const std::string&) {
    return std::vector<sent>{
        {.after = 1ms,
         .bytes = "HTTP/1.1 200 x\r\nContent-Length: 100000\r\nETag: \"1\"\r\n\r\nabc"}};
  });
  options_.attempts = 3;
  const auto begun = time_.now();
  const auto out = read("http://h/a");
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::timed_out);
  EXPECT_LT(time_.now() - begun, 3 * 10s + 5s);
  EXPECT_EQ(counters_.stalls, 3U - 1U);
}

TEST_F(HttpClient, AStaleConnectionIsReplacedWithoutCountingAsAFailure) {
  const std::string content = numbered(1000);
  options_.attempts = 1;
  int answered = 0;
  net_->serve("10.0.0.1", [&](const std::string& request) {
    // The second request on a connection finds it reset.
    if (++answered == 2) return std::vector<sent>{{.bytes = {}, .ends = sent::end::reset}};
    return answer(request, content);
  });
  auto stack = std::make_shared<http_stack>(options_, net_, time_);
  for (int i = 0; i < 2; ++i) {
    outcome out;
    time_.run(read_all(stack, parse_url("http://h/a").value(), 0, &out));
    EXPECT_EQ(out.content, content);
  }
  EXPECT_EQ(net_->connections, 2);
  EXPECT_EQ(counters_.retries, 0U);
}

TEST_F(HttpClient, NamesAreLookedUpOnceAMinute) {
  const std::string content = numbered(10);
  net_->serve("10.0.0.1", [&](const std::string& request) {
    auto pieces = answer(request, content, 0us, "Connection: close\r\n");
    return pieces;
  });
  auto stack = std::make_shared<http_stack>(options_, net_, time_);
  for (int i = 0; i < 3; ++i) {
    outcome out;
    time_.run(read_all(stack, parse_url("http://h/a").value(), 0, &out));
  }
  EXPECT_EQ(net_->connections, 3);
  EXPECT_EQ(net_->look_ups, 1);
  time_.run(time_.sleep(61s));
  outcome out;
  time_.run(read_all(stack, parse_url("http://h/a").value(), 0, &out));
  EXPECT_EQ(net_->look_ups, 2);
}

TEST_F(HttpClient, ALatePartIsAskedForTwiceAndTheFasterAnswerTaken) {
  const std::string content = numbered(12 << 20);
  int requests = 0;
  net_->serve("10.0.0.1", [&](const std::string& request) {
    // The seventh answer crawls after its first 64 KiB.
    const bool slow = ++requests == 7;
    auto pieces = answer(request, content, slow ? 0us : 100us);
    for (std::size_t i = 2; slow && i < pieces.size(); ++i) pieces[i].after = 8s;
    return pieces;
  });
  options_.split = 2;
  options_.part_bytes = 1_MiB;
  source_.chunk_bytes = 256_KiB;
  const auto begun = time_.now();
  EXPECT_EQ(read("http://h/a").content, content);
  EXPECT_EQ(counters_.hedges, 1U);
  EXPECT_EQ(counters_.hedges_won, 1U);
  EXPECT_LT(time_.now() - begun, 5s);
  EXPECT_LT(counters_.wasted_bytes, 1_MiB);
}

TEST_F(HttpClient, ASmallObjectWithAWrongDigestIsFetchedOnceMoreBeforeAnyoneSeesIt) {
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

TEST_F(HttpClient, TheLastPieceOfALargeObjectWaitsForItsDigest) {
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

// Whatever happens on the way, the bytes are right or there is an error; and always within the
// timers.
// Whatever happens on the way, always within the timers.
TEST_F(HttpClient, ChaosGivesTheRightBytesForEverySeed) {
  for (std::uint64_t seed = 0; seed < 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    survive_chaos(seed);
  }
}

}  // namespace
}  // namespace millrace
