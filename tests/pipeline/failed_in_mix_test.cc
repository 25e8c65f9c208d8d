// If a stage fails with a sample of a mix, the state saved then has the sample, wherever the stage
// is. Each source numbers its shards from 0, and a sample held of one source is not taken for a
// sample of another.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::tar_builder;
using testing::with_memory_store;

// Three data sets with members of equal sizes: the samples of each begin at the same offsets.
class FailedInMix : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static constexpr int of_shard = 6;
  static constexpr int of_set = 2;  // shards

  FailedInMix() {
    set_log_level(log_level::quiet);
    for (const char name : {'a', 'b', 'c'}) {
      for (int i = 0; i < of_set; ++i) {
        tar_builder t;
        for (int k = 0; k < of_shard; ++k) t.file(key_of(name, i * of_shard + k) + ".txt", "text");
        store_->put(fmt::format("{}{}", name, i), t.end().str());
      }
    }
  }
  ~FailedInMix() override { set_log_level(log_level::notice); }

  static std::string key_of(char set, int n) { return fmt::format("{}{:02}", set, n); }
  static lane_plan<sample> of(char name) {
    std::vector<std::string> urls;
    for (int i = 0; i < of_set; ++i) urls.push_back(fmt::format("memory:{}{}", name, i));
    return shards(urls, {.seed = 1, .lanes = 1, .shuffle = false}) | untar() | group_by_key();
  }
  mix_options options() const {
    const auto [by, ends] = GetParam();
    return {.seed = 3,
            .by = static_cast<mix_options::order>(by),
            .ends = static_cast<mix_options::until>(ends)};
  }
  bool gives_all() const { return options().ends == mix_options::until::all_end; }

  // A stage that fails with the sample of this key while it is broken.
  sample_stage failing() {
    return select([this](const sample& s) {
      if (s.key == broken_for_) throw std::runtime_error("broken");
      return true;
    });
  }
  // The same as a user-defined stage.
  struct own_stage final : stream<sample> {
    own_stage(const std::string& key, std::unique_ptr<stream<sample>> items)
        : broken_for(key), in_front(std::move(items)) {}
    awaitable<outcome> next() override {
      auto s = co_await in_front->next();
      if (s && *s && (*s)->key == broken_for) throw std::runtime_error("broken");
      co_return s;
    }
    void save(state& to) const override { in_front->save(to); }
    void restore(const state& from) override { in_front->restore(from); }
    const std::string& broken_for;
    std::unique_ptr<stream<sample>> in_front;
  };
  lane_stage<sample, sample> own_failing() {
    return {.name = "own",
            .wrap =
                [this](lane_context&, std::unique_ptr<stream<sample>> items) {
                  return std::make_unique<own_stage>(broken_for_, std::move(items));
                },
            .unchanged = true};
  }

  // Each sample fails in turn, the state is saved, the stage is repaired, and the run continues.
  template <class P>
  void check(const P& plan, std::string_view sets) {
    broken_for_ = "";
    std::vector<std::string> expected;
    auto unbroken = eng_.run(plan);
    for (const sample& s : unbroken) expected.push_back(s.key);
    std::ranges::sort(expected);
    if (gives_all()) {
      ASSERT_EQ(expected.size(), sets.size() * of_set * of_shard);
    }
    int failed = 0;
    for (const char set : sets) {
      for (int n = 0; n < of_set * of_shard; ++n) {
        broken_for_ = key_of(set, n);
        const std::string what = broken_for_;
        std::vector<std::string> got;
        auto first = eng_.run(plan);
        bool was_met = false;
        try {
          while (auto s = first.next()) got.push_back(s->key);
        } catch (const failure& f) {
          was_met = true;
        }
        if (!was_met) continue;  // an epoch that ends before it
        ++failed;
        const state saved = state::from_json(first.save().to_json()).value();
        broken_for_ = "";
        auto second = eng_.run(plan);
        second.restore(saved);
        for (const sample& s : second) got.push_back(s.key);
        std::ranges::sort(got);
        EXPECT_EQ(std::ranges::adjacent_find(got), got.end()) << what;
        EXPECT_TRUE(std::ranges::binary_search(got, what)) << what;
        // Draws differ after it: an epoch may end with another sample.
        if (gives_all()) {
          EXPECT_EQ(got, expected) << what;
        }
      }
    }
    EXPECT_GE(failed, of_shard);
  }

  std::string broken_for_;
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  engine eng_{with_memory_store(store_)};
};

TEST_P(FailedInMix, InOneOfTheSources) {
  const auto held = of('a') | shuffle({.samples = 8, .seed = 2});
  check(mix({{held}, {of('b') | failing()}}, options()), "ab");
  check(mix({{held}, {of('b') | own_failing()}}, options()), "ab");
  check(mix({{held | failing()}, {of('b') | own_failing() | shuffle({.samples = 5})}}, options()),
        "ab");
  check(mix({{held}, {of('b')}, {of('c') | failing() | own_failing()}}, options()), "abc");
}

TEST_P(FailedInMix, BehindTheMix) {
  const auto held = [](char set) { return of(set) | shuffle({.samples = 8, .seed = 2}); };
  const auto both = mix({{held('a')}, {held('b')}}, options());
  check(both | failing(), "ab");
  check(both | own_failing(), "ab");
  check(both | shuffle({.samples = 4}) | own_failing(), "ab");
  check(interleaved(both) | failing(), "ab");
  check(interleaved(both) | map([this](sample s) {
          if (s.key == broken_for_) throw std::runtime_error("broken");
          return s;
        }),
        "ab");
}

TEST_P(FailedInMix, InAMixOfMixes) {
  const auto held = [](char set) { return of(set) | shuffle({.samples = 6, .seed = 2}); };
  const auto inner = mix({{held('a')}, {of('b') | failing()}}, options());
  check(mix({{held('c')}, {inner}}, options()), "abc");
  check(mix({{held('c')}, {inner | own_failing()}}, options()), "abc");
  check(mix({{inner | shuffle({.samples = 6})}, {held('c') | own_failing()}}, options()), "abc");
}

INSTANTIATE_TEST_SUITE_P(Modes, FailedInMix,
                         ::testing::Combine(::testing::Values(0, 1), ::testing::Values(0, 1)));

}  // namespace
}  // namespace millrace
