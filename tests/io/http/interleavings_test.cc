// Many concurrent requests to hosts that come and go, in orders drawn from seeds: anything that a
// coroutine holds over a wait may be changed by another one meanwhile.
#include <gtest/gtest.h>

#include "engine/base/units.h"
#include "engine/coroutines/scope.h"
#include "tests/support/numbered.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::numbered;
using testing::outcome;
using testing::sent;

constexpr int lanes = 6;
constexpr int objects_a_lane = 6;

class Interleavings {
 public:
  explicit Interleavings(std::uint64_t seed) : seed_(seed), random_(seed, purpose::shuffle) {
    client_.net->unsettle(seed);
    client_.options.attempts = 4;
    client_.options.backoff = 100ms;
    client_.options.connections = 1 + static_cast<int>(below(4));
    client_.options.split = 1 + static_cast<int>(seed % 3);
    client_.options.part_bytes = 64_KiB;
    for (const auto& host : hosts_) client_.net->add(host, addresses_of(host));
    for (int ip = 1; ip <= addresses_; ++ip) come(ip);
  }

  void run() {
    auto stack = client_.make_stack();
    client_.time.run(all(stack), 10h);
    EXPECT_EQ(client_.left_in_memory, 0U);
    EXPECT_EQ(right_ + failed_, lanes * objects_a_lane);
  }
  int right() const { return right_; }
  int failed() const { return failed_; }

 private:
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>(random_.uniform() * static_cast<double>(n));
  }
  bool lucky(double chance) { return random_.uniform() < chance; }

  std::vector<std::string> addresses_of(const std::string& host) {
    const int first = host == "one" ? 1 : host == "two" ? 2 : 4;
    const int count = host == "one" ? 1 : host == "two" ? 2 : 3;
    std::vector<std::string> ips;
    for (int i = first; i < first + count; ++i) ips.push_back(ip_text(i));
    return ips;
  }
  // Addresses of both families.
  static std::string ip_text(int ip) {
    return ip % 2 == 0 ? "2001:db8::" + std::to_string(ip) : "10.0.0." + std::to_string(ip);
  }
  void come(int ip) {
    client_.net->serve(ip_text(ip), [this](const std::string& r) { return answered(r); });
  }

  std::vector<sent> answered(const std::string& request) {
    if (lucky(0.03)) return {{.bytes = "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"}};
    if (lucky(0.03)) return {{.bytes = {}, .ends = sent::end::reset}};
    if (lucky(0.10)) {
      const std::string to = hosts_[below(hosts_.size())];
      return {{.bytes = "HTTP/1.1 302 x\r\nContent-Length: 0\r\nLocation: http://" + to +
                        request.substr(4, request.find(' ', 4) - 4) + "\r\n\r\n"}};
    }
    auto pieces = testing::answer(request, content_, 300us);
    if (lucky(0.10)) {
      pieces.resize(1 + below(pieces.size()));
      pieces.back().bytes.resize(pieces.back().bytes.size() / 2);
      pieces.back().ends = lucky(0.5) ? sent::end::fin : sent::end::reset;
    }
    return pieces;
  }

  // Servers end and come back; names vanish and reappear, with other addresses first.
  awaitable<void> weather() {
    for (;;) {
      co_await client_.time.sleep(std::chrono::milliseconds(below(9'000)));
      const int ip = 1 + static_cast<int>(below(addresses_));
      const std::string host = hosts_[below(hosts_.size())];
      switch (below(6)) {
        case 0:
        case 1:
          client_.net->refuse(ip_text(ip));
          break;
        case 2:
        case 3:
          come(ip);
          break;
        case 4:
          client_.net->forget(host, lucky(0.5));
          break;
        default: {
          auto ips = addresses_of(host);
          std::ranges::rotate(ips, ips.begin() + static_cast<long>(below(ips.size())));
          client_.net->add(host, ips);
        }
      }
    }
  }

  awaitable<void> lane(std::shared_ptr<http_stack> stack) {
    for (int i = 0; i < objects_a_lane; ++i) {
      if (lucky(0.5)) co_await client_.time.sleep(std::chrono::milliseconds(below(70'000)));
      outcome out;
      const url target = parse_url("http://" + hosts_[below(hosts_.size())] + "/a").value();
      co_await client_.read_all(stack, target, {}, &out);
      ++(out.failed ? failed_ : right_);
      EXPECT_TRUE(out.ended);
      EXPECT_TRUE(out.failed ? content_.starts_with(out.content) : content_ == out.content);
    }
  }

  awaitable<void> all(std::shared_ptr<http_stack> stack) {
    scope readers(client_.context.get_executor());
    scope sky(client_.context.get_executor());
    sky.spawn(weather());
    for (int i = 0; i < lanes; ++i) readers.spawn(lane(stack));
    co_await readers.join();
    sky.stop();
    co_await sky.join();
  }

  static constexpr int addresses_ = 6;
  std::uint64_t seed_;
  random_stream random_;
  testing::simulated_client client_;
  std::vector<std::string> hosts_{"one", "two", "three"};
  std::string content_ = numbered(300'000 + 64 * seed_);
  int right_ = 0;
  int failed_ = 0;
};

TEST(HttpInterleavings, EveryReadIsRightOrFailsWhateverTheOrder) {
  int right = 0;
  int failed = 0;
  for (const std::uint64_t seed : testing::seeds(60)) {
    SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
    Interleavings one(seed);
    one.run();
    right += one.right();
    failed += one.failed();
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(right, failed);  // the test is not of failures only
}

// Two requests look up one name. The addresses that the first finds refuse it, while the second
// still waits for its answer.
TEST(HttpInterleavings, ThoseWhoNeedOneNameShareItsLookUp) {
  testing::simulated_client client;
  client.net->unsettle(1);
  client.net->add("two", {"10.0.0.1", "2001:db8::1"});
  client.options.attempts = 1;
  const auto stack = client.make_stack();
  std::vector<outcome> outcomes(8);
  const auto all = [](testing::simulated_client* c, std::shared_ptr<http_stack> s,
                      std::vector<outcome>* into) -> awaitable<void> {
    scope readers(c->context.get_executor());
    for (outcome& out : *into) {
      readers.spawn(c->read_all(s, parse_url("http://two/a").value(), {}, &out));
    }
    co_await readers.join();
  };
  client.time.run(all(&client, stack, &outcomes));
  for (const outcome& out : outcomes) {
    ASSERT_TRUE(out.failed);
    EXPECT_EQ(out.failed->kind(), errc::connect_failed);
  }
  EXPECT_EQ(client.net->look_ups, 1);
}

}  // namespace
}  // namespace millrace
