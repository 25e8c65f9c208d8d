// An impossible plan is refused when it is made, with the reason.
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/millrace.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::with_memory_store;

class Refused : public testing::text_shards {
 protected:
  static lane_plan<sample> head() { return shards(urls()) | untar() | group_by_key(); }
  template <class F>
  static error said_by(const F& f) {
    try {
      f();
    } catch (const failure& e) {
      return e.why();
    }
    return {errc::internal, "nothing"};
  }
  template <class F>
  static std::string text_of(const F& f) {
    return said_by(f).message();
  }

  engine eng_{with_memory_store(store_)};
};

// For whatever reason there is none: the error says of how many shards, and names the first.
TEST_F(Refused, AnEpochWithoutASampleNamesItsShards) {
  const auto drops = select([](const sample&) { return false; });
  const auto none = [&](const lane_plan<sample>& plan) {
    auto data = eng_.run(interleaved(plan) | on_error(skip_up_to(5)));
    return said_by([&] { data.next(); });
  };
  const auto lost = [](const std::string& url) { return "memory:lost-" + url; };
  for (const auto& [plan, count] :
       {std::pair{shards(urls()) | untar() | group_by_key() | drops, urls().size()},
        {shards({lost("a"), lost("b")}) | untar() | group_by_key(), std::size_t{2}},
        {shards({lost("a")}) | untar() | group_by_key(), std::size_t{1}}}) {
    const error why = none(plan);
    EXPECT_NE(std::ranges::find(*plan.shards, why.where()), plan.shards->end()) << why.message();
    const std::string number = count == 1 ? "the shard" : fmt::format("the {} shards", count);
    EXPECT_NE(why.what().find(number), std::string::npos) << why.message();
  }
}

TEST_F(Refused, WhatIsThrownWhileARunIsMadeNamesTheStage) {
  const auto thrower = [] { throw std::runtime_error("told while it was made"); };
  const stage<sample, sample> wraps{"mine",
                                    [&](run_context&, std::unique_ptr<stream<sample>> samples) {
                                      thrower();
                                      return samples;
                                    }};
  const stage<sample, sample> announces{
      "mine", [](run_context&, std::unique_ptr<stream<sample>> samples) { return samples; },
      [&](downstream_needs&) { thrower(); }};
  const lane_stage<sample, sample> in_lane{
      .name = "mine",
      .wrap =
          [&](lane_context&, std::unique_ptr<stream<sample>> samples) {
            thrower();
            return samples;
          },
      .unchanged = true};
  const auto plans = {interleaved(head()) | wraps, interleaved(head()) | announces,
                      interleaved(head() | in_lane)};
  for (const auto& p : plans) {
    const error said = said_by([&] { eng_.run(p); });
    EXPECT_EQ(said.kind(), errc::uncaught);
    EXPECT_EQ(said.what(), "the stage 'mine' threw std::runtime_error: told while it was made");
  }
  auto how = with_memory_store(store_);
  how.add_sources = [&](source_registry&) { thrower(); };
  EXPECT_EQ(said_by([&] { engine eng(how); }).what(),
            "add_sources threw std::runtime_error: told while it was made");
}

TEST_F(Refused, AStageOfLanesThatMayChangeSamplesIsNone) {
  const lane_stage<sample, sample> may{
      .name = "mine",
      .wrap = [](lane_context&, std::unique_ptr<stream<sample>> samples) { return samples; }};
  const error said = said_by([&] { head() | may; });
  EXPECT_EQ(said.kind(), errc::usage);
  EXPECT_NE(said.message().find("the stage 'mine' does not say"), std::string::npos);
}

TEST_F(Refused, WhereThereIsNoObjectItIsSaid) {
  const stage<sample, sample> gives_none{"mine", [](run_context&, std::unique_ptr<stream<sample>>) {
                                           return std::unique_ptr<stream<sample>>();
                                         }};
  EXPECT_EQ(text_of([&] { eng_.run(lane_plan<sample>{}); }).substr(0, 20), "usage: an empty plan");
  EXPECT_EQ(text_of([&] { eng_.run(plan<sample>{}); }).substr(0, 20), "usage: an empty plan");
  EXPECT_EQ(text_of([&] { lane_plan<sample>{} | shuffle(); }).substr(0, 20),
            "usage: an empty plan");
  EXPECT_EQ(text_of([&] { eng_.run(interleaved(head()) | gives_none); }).substr(0, 40),
            "usage: the stage 'mine' made no stream; ");
  EXPECT_EQ(text_of([&] { read_samples(nullptr); }),
            "usage: read_samples() without a sample_source");
  auto how = with_memory_store(store_);
  how.add_sources = [&](source_registry& sources) {
    sources.add("none",
                [](source_context, std::string, url,
                   byte_range) -> awaitable<result<std::unique_ptr<byte_source>>> {
                  co_return std::unique_ptr<byte_source>();
                });
  };
  engine eng(how);
  auto data = eng.run(shards({"none:a"}) | untar() | group_by_key());
  const std::string said = text_of([&] { bounded("none:a", [&] { data.next(); }); });
  EXPECT_NE(said.find(", at none:a"), std::string::npos) << said;
  how.add_sources = [&](source_registry& sources) { sources.add("empty", nullptr); };
  EXPECT_EQ(text_of([&] { engine with_none(how); }).substr(0, 55),
            "usage: a source of the scheme 'empty' without a factory");
}

TEST_F(Refused, OptionsThatCannotBe) {
  const auto is_usage = [](const std::string& said) { return said.starts_with("usage: "); };
  for (const engine_options& o : {engine_options{.io_threads = 0}, engine_options{.io_threads = -1},
                                  engine_options{.cpu_threads = -1}}) {
    EXPECT_TRUE(is_usage(text_of([&] { engine eng(o); })));
  }
  for (const shard_list_options& o :
       {shard_list_options{.epochs = 0}, shard_list_options{.epochs = -1},
        shard_list_options{.lanes = -1}}) {
    EXPECT_TRUE(is_usage(text_of([&] { shards(urls(), o); })));
  }
  const auto same = [](sample s) { return s; };
  EXPECT_TRUE(is_usage(text_of([&] { map(same, {.threads = -1}); })));
  for (const double rate : {-1.0, 1.5, std::nan("")}) {
    EXPECT_TRUE(is_usage(text_of([&] { on_error(skip_rate(rate)); })));
  }
  for (const int n : {-1, 0, 2'000'000'000}) {
    EXPECT_TRUE(is_usage(text_of([&] { prefetch p(n); })));
    EXPECT_TRUE(is_usage(text_of([&] { batch({.held = n}); })));
  }
}

TEST_F(Refused, TwoShufflesOfWhichAStateCouldTellOne) {
  const auto once = head() | shuffle({.samples = 10});
  EXPECT_EQ(said_by([&] { auto twice = once | shuffle({.samples = 10}); }).kind(), errc::usage);
}

}  // namespace
}  // namespace millrace
