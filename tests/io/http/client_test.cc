#include "io/http/client.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "io/http/transport.h"
#include "tests/support/http_reads.h"
#include "tests/support/numbered.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::answer;
using testing::numbered;
using testing::outcome;
using testing::sent;

class HttpClient : public testing::http_reads {
 protected:
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

  testing::simulated_time& time_ = client_.time;
  source_options& source_ = client_.source;
  source_counters& counters_ = client_.counters;
  std::size_t& memory_bytes_ = client_.memory_bytes;
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
  EXPECT_EQ(read("http://h/a", {.begin = 1'000'000, .end = {}}).content, content.substr(1'000'000));

  requests.clear();
  options_.split = 4;
  options_.part_bytes = 256_KiB;
  EXPECT_EQ(read("http://h/a").content, content);
  EXPECT_EQ(requests.size(), 12U);
  EXPECT_EQ(read("http://h/a", {.begin = 123'456, .end = {}}).content, content.substr(123'456));
}

// On the real network: no text in a URL makes a connection throw.
TEST_F(HttpClient, ASocketThatCannotBeIsAnError) {
  for (const std::size_t length : {0UL, 107UL, 108UL, 109UL, 5000UL}) {
    const auto connect = [length]() -> awaitable<errc> {
      const auto made = co_await real_network(0)->connect(
          {.ip = {}, .port = {}, .path = std::string(length, 'a')}, steady_clock::now() + 1s);
      co_return made ? errc::internal : made.error().kind();
    };
    const bool fits = length == 107;
    EXPECT_EQ(time_.run(connect()), fits ? errc::connect_failed : errc::usage) << length;
  }
}

TEST_F(HttpClient, AnEmptyRangeIsNotAskedFor) {
  int requests = 0;
  net_->serve("10.0.0.1", [&](const std::string& request) {
    ++requests;
    return answer(request, "content");
  });
  for (const byte_range empty : {byte_range{0, 0}, byte_range{512, 512}, byte_range{512, 100}}) {
    const outcome out = client_.read("http://h/a", empty);
    EXPECT_FALSE(out.failed);
    EXPECT_TRUE(out.ended);
    EXPECT_EQ(out.content, "");
  }
  EXPECT_EQ(requests, 0);
}

// A run of an engine ends while another one still reads.
TEST_F(HttpClient, TheTickOfOneRunDoesNotEndWithAnothers) {
  const auto stack = client_.make_stack();
  auto mine = std::make_unique<scope>(client_.context.get_executor());
  auto others = std::make_unique<scope>(client_.context.get_executor());
  auto signals = std::make_shared<fetch_signals>(client_.context.get_executor());
  const auto run = [](http_stack* s, scope* first, scope* second,
                      std::shared_ptr<fetch_signals> mine_too,
                      testing::simulated_time* time) -> awaitable<int> {
    const auto theirs = std::make_shared<fetch_signals>(co_await this_executor);
    s->tick(*first, theirs);
    s->tick(*second, mine_too);
    first->stop();
    co_await first->join();
    int ticks = 0;
    const auto begun = time->now();
    while (time->now() < begun + 2s) {
      if (co_await first_of(mine_too->changed.wait(), time->sleep(3s)) == 0) ++ticks;
    }
    second->stop();
    co_await second->join();
    co_return ticks;
  };
  const int ticks = time_.run(run(stack.get(), others.get(), mine.get(), signals, &time_));
  EXPECT_GE(ticks, 7);
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

// A server that gives each connection 16 MiB/s: one connection is not enough.
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

// The first request acquires its memory bit by bit; parts that are fetched after it must not take
// all of it.
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

TEST_F(HttpClient, ARangeIsThatRangeFromAServerThatIgnoresRangesToo) {
  const std::string content = numbered(2'000'000);
  net_->serve("10.0.0.1", [&](const std::string&) { return answer("", content); });
  for (const auto split : {std::optional<int>(), std::optional(1), std::optional(8)}) {
    options_.split = split;
    options_.part_bytes = 256_KiB;
    for (const byte_range range :
         {byte_range{0, 100}, byte_range{50, 100}, byte_range{0, 512_KiB},
          byte_range{1'000'000, 1'700'000}, byte_range{0, 2'000'000},
          byte_range{1'999'000, 3'000'000}, byte_range{2'000'000, 3'000'000}}) {
      const auto wanted = content.substr(range.begin, *range.end - range.begin);
      const auto out = read("http://h/a", range);
      EXPECT_EQ(out.content, wanted) << range.begin << " to " << *range.end;
      EXPECT_FALSE(out.failed) << range.begin << ": " << out.failed->message();
    }
  }
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
  auto stack = client_.make_stack();
  for (int i = 0; i < 2; ++i) {
    outcome out;
    time_.run(client_.read_all(stack, parse_url("http://h/a").value(), {}, &out));
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
  auto stack = client_.make_stack();
  for (int i = 0; i < 3; ++i) {
    outcome out;
    time_.run(client_.read_all(stack, parse_url("http://h/a").value(), {}, &out));
  }
  EXPECT_EQ(net_->connections, 3);
  EXPECT_EQ(net_->look_ups, 1);
  time_.run(time_.sleep(61s));
  outcome out;
  time_.run(client_.read_all(stack, parse_url("http://h/a").value(), {}, &out));
  EXPECT_EQ(net_->look_ups, 2);
}

// As RFC 9110, 14.2 and 14.4 allow.
TEST_F(HttpClient, AServerThatSendsLittleAtATimeAndTellsNoLengthIsAskedOn) {
  const std::string content = numbered(1'000'000);
  net_->serve("10.0.0.1", [&](const std::string& request) {
    const auto range = testing::range_of(request, content.size());
    if (!range) {
      return std::vector<sent>{
          {.bytes = "HTTP/1.1 200 x\r\nETag: \"1\"\r\n\r\n" + content.substr(0, 100'000),
           .ends = sent::end::reset}};
    }
    if (range->begin >= content.size()) {
      return std::vector<sent>{
          {.bytes = "HTTP/1.1 416 x\r\nContent-Range: bytes */1000000\r\nContent-Length: "
                    "0\r\n\r\n"}};
    }
    const std::string body = content.substr(range->begin, 100'000);
    return std::vector<sent>{
        {.bytes = fmt::format("HTTP/1.1 206 x\r\nETag: \"1\"\r\nContent-Range: bytes "
                              "{}-{}/*\r\nContent-Length: {}\r\n\r\n",
                              range->begin, range->begin + body.size() - 1, body.size()) +
                  body}};
  });
  for (const std::uint64_t from : {0U, 1U, 950'000U}) {
    const auto out = read("http://h/a", {.begin = from, .end = {}});
    EXPECT_FALSE(out.failed) << out.failed->message();
    EXPECT_EQ(out.content.size(), content.size() - from);
    EXPECT_TRUE(out.content == content.substr(from));
  }
}

TEST_F(HttpClient, ALatePartIsAskedForTwiceAndTheFasterAnswerTaken) {
  const std::string content = numbered(12 << 20);
  int requests = 0;
  net_->serve("10.0.0.1", [&](const std::string& request) {
    // The seventh answer slows to a crawl after its first 64 KiB.
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

// Whatever happens on the way, the bytes are right, and the timers hold.
TEST_F(HttpClient, ChaosGivesTheRightBytesForEverySeed) {
  for (const std::uint64_t seed : testing::seeds(120)) {
    if (HasFailure()) break;
    SCOPED_TRACE(seed);
    survive_chaos(seed);
  }
}

// A server need not know how long an object is: the end of the requested part is not the object's.
// For all answers, or only the first.
TEST_F(HttpClient, APartOfAnObjectOfUnknownLengthIsNotAllOfIt) {
  const std::string content = numbered(1'000'000);
  const std::string length = fmt::format("/{}\r\n", content.size());
  for (const bool always : {true, false}) {
    for (const int split : {1, 2, 4}) {
      bool is_first = true;
      net_->serve("10.0.0.1", [&](const std::string& request) {
        const auto range = request.find("bytes=");
        if (range != request.npos && std::stoull(request.substr(range + 6)) >= content.size()) {
          return std::vector<sent>{{.bytes = fmt::format("HTTP/1.1 416 x\r\nContent-Range: bytes "
                                                         "*/{}\r\nContent-Length: 0\r\n\r\n",
                                                         content.size())}};
        }
        auto pieces = answer(request, content);
        std::string& head = pieces.front().bytes;
        const auto at = head.find(length);
        const bool is_part = head.starts_with("HTTP/1.1 206") && at != head.npos;
        if (is_part && (always || is_first)) head.replace(at, length.size(), "/*\r\n");
        is_first = false;
        return pieces;
      });
      options_.split = split;
      options_.part_bytes = 128_KiB;
      const auto out = read("http://h/a");
      EXPECT_FALSE(out.failed) << always << split;
      EXPECT_EQ(out.content.size(), content.size()) << always << split;
      EXPECT_TRUE(out.content == content);
    }
  }
}

}  // namespace
}  // namespace millrace
