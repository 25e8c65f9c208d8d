#include "io/http/retry_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/http/options.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

class RetryPolicy : public ::testing::Test {
 protected:
  // The decision if it is to request again.
  std::optional<retry_policy::again> failed(bool restarts = false,
                                            const std::optional<std::string>& after = {}) {
    last_ = policy_.on_failure(restarts, after);
    return again();
  }
  std::optional<retry_policy::again> again() const {
    const auto* found = std::get_if<retry_policy::again>(&last_);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  std::string why() const { return std::get<retry_policy::no_more>(last_).why; }

  http_options options_{.attempts = 12, .backoff = 1s};
  retry_policy policy_{options_, real_time(), 1};
  retry_policy::decision last_;
};

TEST_F(RetryPolicy, GivesUpAfterSoManyAttemptsInARowWithoutAByte) {
  for (int i = 1; i < 12; ++i) EXPECT_TRUE(failed()) << i;
  policy_.gained(1);
  for (int i = 1; i < 12; ++i) EXPECT_TRUE(failed()) << i;
  EXPECT_FALSE(failed());
  EXPECT_EQ(why(), "attempt 12 of 12");
}

TEST_F(RetryPolicy, TheBoundOfThePauseDoublesToHalfAMinute) {
  for (unsigned attempt = 0; attempt < 11; ++attempt) {
    const std::chrono::milliseconds bound = std::min(1s * (1 << attempt), 30s);
    std::chrono::milliseconds most{};
    std::chrono::milliseconds least = bound;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      retry_policy policy(options_, real_time(), seed);
      for (unsigned i = 0; i < attempt; ++i) policy.on_failure(false);
      const auto pause = std::get<retry_policy::again>(policy.on_failure(false)).pause;
      most = std::max(most, pause);
      least = std::min(least, pause);
    }
    EXPECT_LE(most, bound) << attempt;  // full jitter
    EXPECT_GT(most, bound * 9 / 10) << attempt;
    EXPECT_LT(least, bound / 10) << attempt;
  }
}

TEST_F(RetryPolicy, ARequestThatBroughtMuchIsNoRetryAndIsFollowedAtOnce) {
  policy_.gained(65'536);
  EXPECT_FALSE(failed()->is_retry);
  EXPECT_EQ(again()->pause, 0ms);
  EXPECT_TRUE(failed()->is_retry);
  policy_.gained(65'535);
  EXPECT_TRUE(failed()->is_retry);
  EXPECT_EQ(again()->pause, 0ms);
}

TEST_F(RetryPolicy, WaitsAsTheServerAsksUpToAMinute) {
  EXPECT_EQ(failed(false, "40")->pause, 40s);
  EXPECT_EQ(failed(false, "100000")->pause, 60s);
  EXPECT_LT(failed(false, "soon")->pause, 30s);
}

TEST_F(RetryPolicy, CrumbsAndRestartsAreLimitedToo) {
  for (int i = 1; i < 120; ++i) {
    policy_.gained(1);
    EXPECT_TRUE(failed()) << i;
  }
  policy_.gained(1);
  last_ = policy_.on_end();
  EXPECT_EQ(why(), "120 requests in a row brought less than 64 KiB each");
  policy_.gained(65'536);
  last_ = policy_.on_end();
  EXPECT_TRUE(again());
  for (int i = 1; i < 12; ++i) {
    policy_.gained(100'000);
    EXPECT_TRUE(failed(true)) << i;
  }
  policy_.gained(100'000);
  EXPECT_FALSE(failed(true));
  EXPECT_EQ(why(), "restarted 12 times");
}

}  // namespace
}  // namespace millrace
