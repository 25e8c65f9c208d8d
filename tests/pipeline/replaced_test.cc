// A shard was replaced by another one of the same name and layout, between a state and the run
// resumed from it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::with_memory_store;

constexpr int samples_each = 30;
const std::vector<std::string> urls{"memory:0", "memory:1"};

// Two shards: names and sizes are the same for every `version`, but contents are not.
std::shared_ptr<memory_store> store_of(char version) {
  auto store = std::make_shared<memory_store>(10'000);
  for (int shard = 0; shard < std::ssize(urls); ++shard) {
    testing::tar_builder t;
    for (int i = 0; i < samples_each; ++i) {
      t.file(fmt::format("s{}{:04}.txt", shard, i), std::string(2000, version));
    }
    store->put(std::to_string(shard), t.end().str());
  }
  return store;
}

lane_plan<sample> plan_of(std::size_t held, const std::shared_ptr<const shard_index>& index = {}) {
  auto samples =
      shards(urls, {.lanes = 1, .shuffle = false, .index = index}) | untar() | group_by_key();
  return held > 0 ? samples | shuffle({.samples = held}) : samples;
}

// The state after `taken` samples of the first version.
template <class P>
state saved_after(const P& plan, int taken) {
  engine eng(with_memory_store(store_of('a')));
  auto data = eng.run(plan);
  for (int i = 0; i < taken; ++i) data.next();
  return state::from_json(data.save().to_json()).value();
}

struct rest {
  std::set<std::string> old_keys;    // of the first shard; the state was saved within it
  std::set<std::string> other_keys;  // of the second one
  ledger counts;
};

// The rest, read with shards of `version` and with errors skipped.
template <class P>
rest rest_of(const P& plan, const state& saved, char version) {
  engine eng(with_memory_store(store_of(version)));
  auto data = eng.run(plan | on_error(skip_errors()));
  data.restore(saved);
  rest out;
  for (const sample& s : data) {
    (s.key.starts_with("s0") ? out.old_keys : out.other_keys).insert(s.key);
  }
  out.counts = data.counts();
  return out;
}

// A state of an older version, which has no record of heads.
state without_heads(const state& saved) {
  state out;
  for (const auto& [name, values] : saved.records()) {
    if (!name.ends_with("/head")) out.put(name, values);
  }
  for (const auto& [name, held] : saved.all_held()) out.hold(name, held);
  return out;
}

TEST(Replaced, TheRunEndsBeforeItGivesAnyOfTheOtherShard) {
  const auto plan = plan_of(0);
  const state saved = saved_after(interleaved(plan), 10);
  engine eng(with_memory_store(store_of('b')));
  auto data = eng.run(interleaved(plan));
  data.restore(saved);
  try {
    data.next();
    FAIL() << "it gave a sample of another shard";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::changed);
    EXPECT_NE(f.why().message().find("replaced since the state was saved"), std::string::npos);
    EXPECT_EQ(f.why().where(), "memory:0");
  }
  // A state saved then has it as well.
  auto again = eng.run(interleaved(plan));
  again.restore(state::from_json(data.save().to_json()).value());
  EXPECT_THROW(again.next(), failure);
}

TEST(Replaced, SkippedItIsLeftOutAndTheOthersCome) {
  for (const std::size_t held : {0U, 8U}) {
    const auto plan = plan_of(held);
    const rest other = rest_of(plan, saved_after(plan | on_error(skip_errors()), 10), 'b');
    EXPECT_TRUE(other.old_keys.empty()) << held;
    EXPECT_EQ(other.other_keys.size(), samples_each) << held;
    EXPECT_GT(other.counts.skipped.at(errc::changed), 0U) << held;
  }
}

TEST(Replaced, ACopyWithTheSameBytesIsTheSameShard) {
  for (const std::size_t held : {0U, 8U}) {
    const auto plan = plan_of(held);
    const rest same = rest_of(plan, saved_after(plan | on_error(skip_errors()), 10), 'a');
    EXPECT_EQ(same.old_keys.size() + same.other_keys.size(), 2 * samples_each - 10) << held;
    EXPECT_EQ(same.counts.skipped_in_all(), 0U) << held;
  }
}

TEST(Replaced, APartThatAnIndexDealsIsToldToo) {
  engine eng(with_memory_store(store_of('a')));
  const auto index = std::make_shared<const shard_index>(testing::index_of(eng, urls));
  // Four lanes of two shards: each begins within one, or at its beginning.
  const auto plan =
      shards(urls, {.lanes = 4, .shuffle = false, .index = index}) | untar() | group_by_key();
  const state saved = saved_after(plan | on_error(skip_errors()), 12);
  const rest other = rest_of(plan, saved, 'b');
  EXPECT_TRUE(other.old_keys.empty() && other.other_keys.empty());
  EXPECT_EQ(other.counts.skipped.at(errc::changed), 4U);
  const rest same = rest_of(plan, saved, 'a');
  EXPECT_EQ(same.old_keys.size() + same.other_keys.size(), 2 * samples_each - 12);
}

TEST(Replaced, AStateWithoutHeadsIsResumedAsBefore) {
  const auto plan = plan_of(8);
  const state old = without_heads(saved_after(plan | on_error(skip_errors()), 10));
  const rest any = rest_of(plan, old, 'b');
  EXPECT_EQ(any.old_keys.size() + any.other_keys.size(), 2 * samples_each - 10);
}

TEST(Replaced, AStateGrowsByOneRecordOfALane) {
  const state saved = saved_after(interleaved(plan_of(0)), 10);
  const auto size = saved.to_json().size();
  EXPECT_LT(size - without_heads(saved).to_json().size(), 60U);
}

}  // namespace
}  // namespace millrace
