// loader::wait_for(): items that a consumer has asked for and not taken yet.
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <string>
#include <vector>

#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using testing::bounded;
using testing::with_memory_store;

class Asked : public testing::text_shards {
 protected:
  static std::string name_of(const sample& s) { return s.key; }
  static std::string name_of(const group_of<sample>& g) {
    std::string out;
    for (const sample& s : g.items) out += s.key + " ";
    return out;
  }
  // What the next call gives: a name, "end" or an error.
  template <class T>
  static std::string next_of(loader<T>& data) try {
    const auto item = data.next();
    return item ? name_of(*item) : "end";
  } catch (const failure& f) {
    if (!f.why().is_skippable()) throw;
    return "error of " + f.why().sample_key();
  }
  // What all calls of two epochs give.
  template <class T>
  static std::vector<std::string> rest_of(loader<T>& data) {
    std::vector<std::string> out;
    for (int ends = 0; ends < 2;) {
      out.push_back(next_of(data));
      ends += out.back() == "end" ? 1 : 0;
    }
    return out;
  }

  // Asks before each call, saves the position, and takes the item: the same comes as without
  // asking, and a run from each `step`th position continues with the item that was asked for.
  template <class T>
  void expect_the_same(const plan<T>& what, std::size_t step) {
    auto plain = eng_.run(what);
    const std::vector<std::string> all = rest_of(plain);
    auto data = eng_.run(what);
    for (std::size_t i = 0; i < all.size(); ++i) {
      while (!data.wait_for(milliseconds(1000))) {
      }
      ASSERT_TRUE(data.wait_for(milliseconds(0))) << "asked twice";
      if (i % step == 0) {
        const state at = data.save();
        auto resumed = eng_.run(what);
        resumed.restore(state::from_json(at.to_json()).value());
        for (std::size_t k = i; k < all.size(); ++k) ASSERT_EQ(next_of(resumed), all[k]) << i;
      }
      ASSERT_EQ(next_of(data), all[i]);
    }
  }

  engine eng_{with_memory_store(store_)};
};

lane_plan<sample> two_epochs(std::vector<std::string> urls) {
  return shards(std::move(urls), {.seed = 42, .lanes = 3, .epochs = 2}) | untar() | group_by_key();
}

TEST_F(Asked, GivesTheSameAndIsBeforeTheItemInAState) {
  bounded("samples", [&] { expect_the_same(interleaved(two_epochs(urls())), 41); });
  bounded("shuffled", [&] {
    expect_the_same(interleaved(two_epochs(urls()) | shuffle({.samples = 20, .seed = 1})), 41);
  });
  bounded("groups", [&] { expect_the_same(two_epochs(urls()) | batched(7, true), 5); });
  bounded("read ahead",
          [&] { expect_the_same(interleaved(two_epochs(urls())) | prefetch(4), 41); });
}

TEST_F(Asked, GivesErrorsOnce) {
  const auto fails = [](sample s) -> result<sample> {
    if (s.key.back() == '3') return error(errc::bad_field, "a three").key(s.key).skippable();
    return s;
  };
  bounded("errors", [&] { expect_the_same(two_epochs(urls()) | map(fails), 41); });
}

TEST_F(Asked, WaitsAsLongAsItIsTold) {
  bounded("a latch", [&] {
    std::latch open(1);
    auto data = eng_.run(two_epochs(urls()) | map(
                                                  [&open](sample s) {
                                                    open.wait();
                                                    return s;
                                                  },
                                                  {.threads = 1}));
    EXPECT_FALSE(data.wait_for(milliseconds(0)));
    EXPECT_FALSE(data.wait_for(milliseconds(1)));
    open.count_down();
    while (!data.wait_for(milliseconds(1000))) {
    }
    EXPECT_NE(next_of(data), "end");
  });
}

TEST_F(Asked, AStopIsAnswered) {
  bounded("a stop", [&] {
    auto data = eng_.run(two_epochs(urls()));
    EXPECT_NE(next_of(data), "end");
    while (!data.wait_for(milliseconds(1000))) {
    }
    data.stop();
    const state at = data.save();
    EXPECT_NE(next_of(data), "end");  // it was there before the stop
    EXPECT_THROW(data.next(), failure);
    auto resumed = eng_.run(two_epochs(urls()));
    resumed.restore(at);
    auto whole = eng_.run(two_epochs(urls()));
    next_of(whole);
    EXPECT_EQ(rest_of(resumed), rest_of(whole));
  });
}

TEST_F(Asked, ALoaderThatWasAskedMayBeDestroyed) {
  bounded("destroyed", [&] {
    for (int i = 0; i < 50; ++i) {
      auto data = eng_.run(two_epochs(urls()));
      data.wait_for(milliseconds(0));
    }
  });
}

struct number {
  int n = 0;
};

TEST_F(Asked, APositionBeforeAnItemOfUnknownOriginIsRefused) {
  auto data = eng_.run(two_epochs(urls()) | map([](const sample&) { return number{}; }));
  while (!data.wait_for(milliseconds(1000))) {
  }
  EXPECT_THROW(data.save(), failure);
  EXPECT_TRUE(data.next());
  EXPECT_NO_THROW(data.save());
}

}  // namespace
}  // namespace millrace
