#include "io/http/policies.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/http/dialer.h"
#include "io/http/netrc.h"
#include "io/http/options.h"
#include "io/http/proxy.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using time_point = time_source::time_point;

TEST(RetryBudget, LetsABurstThroughThenTwoASecond) {
  retry_budget budget;
  const time_point start{1h};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(budget.take(start).count(), 0);
  EXPECT_EQ(budget.take(start), 500ms);
  EXPECT_EQ(budget.take(start), 1s);
  EXPECT_EQ(budget.take(start + 10s).count(), 0);
}

TEST(RetryBudget, RequestsThatWorkEarnATenthEach) {
  retry_budget budget;
  const time_point start{1h};
  for (int i = 0; i < 100; ++i) budget.take(start);
  for (int i = 0; i < 10; ++i) budget.succeeded();
  EXPECT_EQ(budget.take(start).count(), 0);
  EXPECT_GT(budget.take(start).count(), 0);
}

TEST(PartSize, GrowsWithTheWaitForAFirstByte) {
  part_size near(0);
  part_size far(0);
  for (int i = 0; i < 20; ++i) {
    near.completed(1 << 20, 0.001, 0.01);
    far.completed(1 << 20, 0.1, 0.01);
  }
  EXPECT_EQ(near.bytes(64 << 20), part_size::least_bytes);
  EXPECT_GT(far.bytes(128 << 20), 64U << 20);
  EXPECT_EQ(far.bytes(16 << 20), 16U << 20);
  EXPECT_EQ(part_size(2 << 20).bytes(64 << 20), 2U << 20);
}

TEST(RangePlanner, CoversAllOnceInOrder) {
  range_planner planner({.begin = 100, .end = {}});
  EXPECT_EQ(planner.next(1000), (byte_range{100, 1100}));
  planner.known(2500);
  EXPECT_EQ(planner.next(1000), (byte_range{1100, 2100}));
  EXPECT_EQ(planner.next(1000), (byte_range{2100, 2500}));
  EXPECT_FALSE(planner.next(1000));
  EXPECT_TRUE(planner.done());
  range_planner in_one({});
  EXPECT_EQ(in_one.next(0), (byte_range{0, std::nullopt}));
  EXPECT_TRUE(in_one.done());
  range_planner inner({.begin = 10, .end = 20});
  inner.known(1000);
  EXPECT_EQ(inner.next(0), (byte_range{10, 20}));
}

TEST(HedgePolicy, AsksAgainOnlyForWhatIsMuchSlowerThanUsual) {
  hedge_policy policy(0.05);
  EXPECT_FALSE(policy.worth_it(0, 100, 1000));  // there is no usual rate yet
  for (int i = 0; i < 8; ++i) policy.completed(10'000'000, 1);
  EXPECT_FALSE(policy.worth_it(9'000'000, 1.5, 1000));
  EXPECT_FALSE(policy.worth_it(1000, 0.5, 1000));
  EXPECT_TRUE(policy.worth_it(1'000'000, 2, 1000));
}

TEST(HedgePolicy, NeverCostsMoreThanItsShare) {
  hedge_policy policy(0.05);
  for (int i = 0; i < 8; ++i) policy.completed(10'000'000, 1);
  policy.received(1'000'000'000);
  EXPECT_EQ(policy.allowance(), hedge_policy::first_allowance_bytes + 50'000'000);
  policy.wasted(100'000'000);
  EXPECT_EQ(policy.allowance(), 0U);
  EXPECT_FALSE(policy.worth_it(0, 10, 1000));
  EXPECT_EQ(hedge_policy(0).allowance(), 0U);
}

std::string proxy_of(const std::string& target, const proxy_settings& settings) {
  const auto found = proxy_for(parse_url(target).value(), settings);
  return found && *found ? (*found)->host + ":" + (*found)->port_or_default() : "";
}

TEST(Proxy, IsChosenBySchemeUnlessTheHostIsExcluded) {
  const proxy_settings s{.http_proxy = "http://p:1",
                         .https_proxy = "q:2",
                         .all_proxy = "",
                         .no_proxy = "localhost,.inside.example, 10.0.0.0/8,[::1],other:81"};
  EXPECT_EQ(proxy_of("http://h/a", s), "p:1");
  EXPECT_EQ(proxy_of("https://h/a", s), "q:2");
  for (const char* direct :
       {"http://localhost/a", "http://x.inside.example/a", "http://inside.example/a",
        "http://10.2.3.4/a", "http://[::1]/a", "http://other:81/a", "http+unix://%2Frun%2Fx/a"}) {
    EXPECT_EQ(proxy_of(direct, s), "") << direct;
  }
  EXPECT_EQ(proxy_of("http://notinside.example/a", s), "p:1");
  EXPECT_EQ(proxy_of("http://other/a", s), "p:1");
  EXPECT_EQ(proxy_of("http://h/a",
                     {.http_proxy = "p", .https_proxy = "", .all_proxy = "", .no_proxy = "*"}),
            "");
  EXPECT_FALSE(
      proxy_for(parse_url("http://h/a").value(),
                {.http_proxy = "socks5://p", .https_proxy = "", .all_proxy = "", .no_proxy = ""}));
}

TEST(Netrc, FindsTheMachineThenTheDefault) {
  const std::string text =
      "# a comment machine x\nmachine a login me password \"with space\"\n"
      "macdef init\nmachine no\n\nmachine b\n  login you\n  password p2\ndefault login any "
      "password d";
  EXPECT_EQ(netrc_login(text, "a")->password, "with space");
  EXPECT_EQ(netrc_login(text, "b")->user, "you");
  EXPECT_EQ(netrc_login(text, "no")->user, "any");
  EXPECT_FALSE(netrc_login("machine a login x password y", "b"));
}

TEST(Secrets, SettingsAreParsedOrRefused) {
  EXPECT_EQ(parse_fields("A: 1|B:2").value(), (http_fields{{"A", "1"}, {"B", "2"}}));
  for (const char* wrong : {"no colon", ": x", "A B: x", " A: x", "A : x", "A: 1| B: 2", "A\t: x",
                            "A\r\nB: x", "\"A\": x", "\xc3\xa4: x"}) {
    EXPECT_EQ(parse_fields(wrong).error().kind(), errc::bad_setting) << wrong;
  }
  EXPECT_EQ(parse_token_files("h=/f;g=/x=y").value().at("g"), "/x=y");
  EXPECT_FALSE(parse_token_files("h="));
}

TEST(Dialer, TriesTheFamiliesInTurn) {
  const auto at = [](const char* ip) { return address{.ip = ip, .port = "80", .path = ""}; };
  EXPECT_EQ(interleaved_families({at("::1"), at("::2"), at("1.1.1.1")}),
            (std::vector{at("::1"), at("1.1.1.1"), at("::2")}));
}

}  // namespace
}  // namespace millrace
