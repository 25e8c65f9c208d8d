// A peer that stops forever, at each point where the client waits for it: every wait ends by its
// deadline, and by a stop.
#include <gtest/gtest.h>

#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"
#include "io/http/transport.h"
#include "tests/support/numbered.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::outcome;
using testing::sent;

struct silence {
  const char* where;
  const char* target;
  void (*set_up)(testing::simulated_client& client);
};

void serve(testing::simulated_client& client, std::vector<sent> pieces) {
  client.net->serve("10.0.0.1", [pieces](const std::string&) { return pieces; });
}

// A head, and then `bytes` once a second, for longer than the client waits.
std::vector<sent> dripping(const std::string& head, const std::string& bytes) {
  std::vector<sent> out{{.bytes = head}};
  for (int i = 0; i < 1000; ++i) out.push_back({.after = 1s, .bytes = bytes});
  return out;
}

const std::string hundred(100, 'x');
const std::string head_of_1_mb = "HTTP/1.1 200 x\r\nETag: \"1\"\r\nContent-Length: 1000000\r\n\r\n";

const silence silences[] = {
    {"the resolver", "http://lost/a",
     [](testing::simulated_client& c) { c.net->never_resolve("lost"); }},
    {"connecting", "http://h/a",
     [](testing::simulated_client& c) { c.net->never_answer("10.0.0.1"); }},
    {"connecting to the first of two", "http://two/a",
     [](testing::simulated_client& c) {
       c.net->add("two", {"10.0.0.8", "10.0.0.9"});
       c.net->never_answer("10.0.0.8");
       c.net->never_answer("10.0.0.9");
     }},
    {"the TLS handshake", "https://h/a", [](testing::simulated_client& c) { serve(c, {}); }},
    {"the proxy's resolver", "http://h/a",
     [](testing::simulated_client& c) {
       c.options.environment["http_proxy"] = "http://lost:80";
       c.net->never_resolve("lost");
     }},
    {"the proxy's tunnel", "https://h/a",
     [](testing::simulated_client& c) {
       c.options.environment["https_proxy"] = "http://h:80";
       serve(c, {});
     }},
    {"the proxy's tunnel, drop by drop", "https://h/a",
     [](testing::simulated_client& c) {
       c.options.environment["https_proxy"] = "http://h:80";
       serve(c, dripping("HTTP/1.1 200 x\r\n", "X"));
     }},
    {"the proxy's tunnel, in a flood", "https://h/a",
     [](testing::simulated_client& c) {
       c.options.environment["https_proxy"] = "http://h:80";
       serve(c, {{.bytes = "HTTP/1.1 200 x\r\n" + std::string(1 << 20, 'X')}});
     }},
    {"the proxy's tunnel, in a flood of answers that are none yet", "https://h/a",
     [](testing::simulated_client& c) {
       c.options.environment["https_proxy"] = "http://h:80";
       std::string flood;
       for (int i = 0; i < 1000; ++i) flood += "HTTP/1.1 102 x\r\n\r\n";
       serve(c, {{.bytes = flood}});
     }},
    {"the TLS handshake behind a proxy", "https://h/a",
     [](testing::simulated_client& c) {
       c.options.environment["https_proxy"] = "http://h:80";
       serve(c, {{.bytes = "HTTP/1.1 200 x\r\n\r\n"}});
     }},
    {"the head", "http://h/a", [](testing::simulated_client& c) { serve(c, {}); }},
    {"within the head", "http://h/a",
     [](testing::simulated_client& c) { serve(c, {{.bytes = "HTTP/1.1 200 x\r\nETa"}}); }},
    {"the head, drop by drop", "http://h/a",
     [](testing::simulated_client& c) { serve(c, dripping("HTTP/1.1 200 x\r\n", "X")); }},
    {"answers that are none yet", "http://h/a",
     [](testing::simulated_client& c) { serve(c, dripping("", "HTTP/1.1 102 x\r\n\r\n")); }},
    {"the body", "http://h/a",
     [](testing::simulated_client& c) { serve(c, {{.bytes = head_of_1_mb}}); }},
    {"within the body", "http://h/a",
     [](testing::simulated_client& c) {
       serve(c, {{.bytes = head_of_1_mb}, {.bytes = std::string(300'000, 'x')}});
     }},
    {"the body, 100 bytes a second", "http://h/a",
     [](testing::simulated_client& c) { serve(c, dripping(head_of_1_mb, hundred)); }},
    {"chunks, 100 bytes a second", "http://h/a",
     [](testing::simulated_client& c) {
       serve(c, dripping("HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n",
                         "64\r\n" + hundred + "\r\n"));
     }},
    {"the end of a body of no length", "http://h/a",
     [](testing::simulated_client& c) {
       serve(c, {{.bytes = "HTTP/1.1 200 x\r\n\r\n"}, {.bytes = hundred}});
     }},
    {"redirects without end", "http://h/a",
     [](testing::simulated_client& c) {
       serve(c, {{.after = 1s,
                  .bytes = "HTTP/1.1 302 x\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n"}});
     }},
    {"'later', again and again", "http://h/a",
     [](testing::simulated_client& c) {
       serve(c, {{.bytes = "HTTP/1.1 503 x\r\nRetry-After: 100000\r\nContent-Length: 0\r\n\r\n"}});
     }},
    {"one byte a request", "http://h/a",
     [](testing::simulated_client& c) {
       c.net->serve("10.0.0.1", [](const std::string& request) {
         auto pieces = testing::answer(request, testing::numbered(1'000'000));
         pieces.resize(2);
         pieces[1].bytes.resize(1);
         pieces[1].ends = sent::end::fin;
         return pieces;
       });
     }},
};

// The longest that it may take: both attempts through all timers, and the pauses between them.
TEST(HttpDeadlines, WhateverStopsForEverIsAnErrorInTime) {
  for (const silence& s : silences) {
    SCOPED_TRACE(s.where);
    testing::simulated_client client;
    client.options.attempts = 2;
    s.set_up(client);
    const outcome out = client.read(s.target, {}, 3min);
    EXPECT_TRUE(out.ended);
    EXPECT_TRUE(out.failed);
    EXPECT_EQ(client.left_in_memory, 0U);
  }
}

// Always has a byte ready, and takes a second for each.
class flood final : public byte_stream, public time_source {
 public:
  moved try_read(std::span<std::byte> into) override {
    now_ += 1s;
    into[0] = std::byte{'X'};
    return {1, {}};
  }
  moved try_write(std::span<const std::byte> from) override { return {from.size(), {}}; }
  awaitable<error_code> wait(direction, time_point) override { co_return error_code(); }
  time_point now() const override { return now_; }
  std::int64_t unix_seconds() const override { return 0; }
  awaitable<void> sleep_until(time_point) override { co_return; }

 private:
  time_point now_{};
};

TEST(HttpDeadlines, WhoNeverLetsUsWaitIsLeftInTimeAsWell) {
  testing::simulated_client client;
  const auto read = []() -> awaitable<int> {
    flood peer;
    const auto deadline = peer.now() + 10s;
    for (int bytes = 0;; ++bytes) {
      std::byte next{};
      const auto got = co_await read_some(peer, {&next, 1}, peer, deadline);
      if (got.failed == asio::error::timed_out || bytes > 100) co_return bytes;
    }
  };
  EXPECT_EQ(client.time.run(read()), 11);
}

awaitable<void> stop_reader(testing::simulated_client* client, const char* target,
                            steady_clock::duration after, outcome* out,
                            steady_clock::duration* took) {
  scope readers(client->context.get_executor());
  readers.spawn(client->read_all(client->make_stack(), parse_url(target).value(), {}, out));
  co_await client->time.sleep(after);
  const auto begun = client->time.now();
  if (client->running != nullptr) client->running->stop();
  co_await readers.join();
  *took = client->time.now() - begun;
}

TEST(HttpDeadlines, AndAStopEndsItWithinASecond) {
  std::uint64_t place = 0;
  for (const silence& s : silences) {
    for (const auto after : {0ms, 1ms, 400ms, 3000ms, 7000ms}) {
      if (!testing::is_taken(place++)) continue;
      SCOPED_TRACE(fmt::format("{} after {} ms", s.where, after.count()));
      testing::simulated_client client;
      s.set_up(client);
      outcome out;
      steady_clock::duration took{};
      client.time.run(stop_reader(&client, s.target, after, &out, &took));
      EXPECT_LT(took, 1s);
      EXPECT_EQ(client.left_in_memory, 0U);
    }
  }
}

}  // namespace
}  // namespace millrace
