// Shards that differ from their index, read by it in parts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/shard_server.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::index_of;
using testing::tar_builder;
using testing::with_memory_store;

constexpr int samples = 12;

// Members "0.a", "0.b", "1.a", ...
std::vector<std::string> members(int from, int to) {
  std::vector<std::string> out;
  for (int i = from; i < to; ++i) {
    for (const char* extension : {"a", "b"}) out.push_back(fmt::format("{:03}.{}", i, extension));
  }
  return out;
}

std::string shard_of(const std::vector<std::string>& names) {
  tar_builder t;
  for (const auto& name : names) t.file(name, name);
  std::string text = t.end().str();
  text.resize(96 << 10);  // as tar does to the size of a record
  return text;
}

struct rewritten {
  const char* how;
  std::vector<std::string> names;
};

// What may have become of the shard, mostly of the same length.
std::vector<rewritten> versions() {
  std::vector<rewritten> out = {{"as indexed", members(0, samples)},
                                {"one sample more", members(0, samples + 1)},
                                {"many more", members(0, 3 * samples)},
                                {"one less", members(0, samples - 1)},
                                {"others", members(100, 100 + samples)}};
  for (std::size_t at = 0; at <= std::size_t{2} * samples; ++at) {
    if (!testing::is_taken(at)) continue;
    auto longer = members(0, samples);
    longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(at), "new.a");
    out.push_back({"a member more", longer});
    longer.pop_back();
    out.push_back({"and the last one gone", longer});
    if (at == std::size_t{2} * samples) break;
    auto shorter = members(0, samples);
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at));
    out.push_back({"a member less", shorter});
  }
  return out;
}

// Groups adjacent members of one key: key and extensions.
std::set<std::string> split_into_samples(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  std::string last;
  for (const auto& name : names) {
    const std::string key = name.substr(0, 3);
    if (std::exchange(last, key) != key) all.push_back(key + " ");
    all.back() += name.substr(4);
  }
  return {all.begin(), all.end()};
}

struct outcome {
  std::multiset<std::string> given;  // key and extensions
  std::uint64_t errors = 0;
};

template <class P>
outcome outcome_of(engine& eng, const P& plan) {
  outcome out;
  auto data = eng.run(plan | on_error(skip_errors()));
  try {
    while (auto s = data.next()) {
      std::string extensions;
      for (const field& f : s->fields) extensions += f.extension;
      out.given.insert(s->key + " " + extensions);
    }
  } catch (const failure& f) {  // no part yielded any
    EXPECT_EQ(f.kind(), errc::integrity) << f.what();
  }
  out.errors = data.counts().skipped_in_all();
  return out;
}

class StaleIndex : public ::testing::Test {
 protected:
  // The index of a shard that was replaced since.
  shard_index indexed(const std::vector<std::string>& now, bool has_offsets) {
    store_->put("t", shard_of(members(0, samples)));
    auto index = index_of(engine_, {"memory:t"});
    if (!has_offsets) index.shards[0].blocks.clear();
    store_->put("t", shard_of(now));
    return index;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(1000);
  engine engine_{with_memory_store(store_)};
};

// However a shard read in parts was rewritten: every sample yielded is in the shard, none comes
// twice, and missing ones are reported.
TEST_F(StaleIndex, HalvesNoSampleAndLeavesOutNoneInSilence) {
  for (const auto& [how, names] : versions()) {
    for (const bool has_offsets : {true, false}) {
      for (const epoch_mode mode : {epoch_mode::exact, epoch_mode::equal}) {
        if (!has_offsets && mode == epoch_mode::exact) continue;  // assigned as a whole
        for (const int lanes : {1, 2, 3, 5}) {
          const auto index = indexed(names, has_offsets);
          const auto got = outcome_of(
              engine_, indexed_shards(index, {.lanes = lanes, .mode = mode, .shuffle = false}) |
                           untar() | group_by_key());
          const auto whole = split_into_samples(names);
          const std::set<std::string> given(got.given.begin(), got.given.end());
          const std::string what =
              fmt::format("{}: {}, {} lanes, {}, offsets {}", how, fmt::join(names, " "), lanes,
                          mode == epoch_mode::exact ? "exact" : "equal", has_offsets);
          for (const auto& s : given) EXPECT_TRUE(whole.contains(s)) << s << " of " << what;
          EXPECT_EQ(given.size(), got.given.size()) << what;
          // An equal epoch leaves out the remainder.
          const bool is_all = mode == epoch_mode::exact || samples % lanes == 0;
          if (is_all && given != whole) EXPECT_GT(got.errors, 0U) << what;
          if (how == std::string("as indexed")) EXPECT_EQ(got.errors, 0U) << what;
        }
      }
    }
  }
}

// Such a server would send everything before the requested part.
TEST_F(StaleIndex, IsLookedForWithoutRequestsBehindLargeFilesOfAServerWithoutRanges) {
  std::vector<std::size_t> requests;
  for (const std::size_t size : {std::size_t{512}, 5 * 1_MiB}) {
    testing::shard_server server;
    tar_builder shard;
    for (const char* name : {"0.a", "0.b", "1.a", "1.b"}) shard.file(name, std::string(size, 'x'));
    server.put("/t", shard.end().str());
    const auto index = index_of(engine_, {server.url("/t")});
    const std::size_t before = server.requests().size();
    constexpr int all_answers = 50;
    for (int i = 0; i < all_answers; ++i) server.fail_next("/t", {.ignore_range = true});
    const auto got = outcome_of(
        engine_, indexed_shards(index, {.lanes = 2, .mode = epoch_mode::exact, .shuffle = false}) |
                     untar() | group_by_key());
    EXPECT_EQ(got.given.size(), 2U);
    requests.push_back(server.requests().size() - before);
  }
  EXPECT_GT(requests[0], 2U);  // the shard is read in parts, which are checked
  EXPECT_EQ(requests[0], requests[1]);
}

// Each lane by itself: a rank may read none of those in which the shards differ in length.
TEST_F(StaleIndex, HalvesNoSampleOfAWindow) {
  for (const auto& [how, names] : versions()) {
    const auto index = indexed(names, true);
    const auto whole = split_into_samples(names);
    for (const std::size_t samples_held : {1U, 100U}) {
      for (const int lanes : {1, 2, 3}) {
        for (int rank = 0; rank < lanes; ++rank) {
          const auto got = outcome_of(engine_, indexed_shards(index, {.rank = rank,
                                                                      .world_size = lanes,
                                                                      .lanes = lanes,
                                                                      .mode = epoch_mode::exact,
                                                                      .shuffle = false}) |
                                                   window_shuffle({.samples = samples_held}));
          const std::set<std::string> given(got.given.begin(), got.given.end());
          const std::string what =
              fmt::format("{}: {}, rank {} of {}", how, fmt::join(names, " "), rank, lanes);
          for (const auto& s : given) EXPECT_TRUE(whole.contains(s)) << s << " of " << what;
          EXPECT_EQ(given.size(), got.given.size()) << what;
          if (given.size() < samples / static_cast<std::size_t>(lanes)) {
            EXPECT_GT(got.errors, 0U) << what;
          }
        }
      }
    }
  }
}

// By number, each read by itself: none is half a sample, or another than was indexed.
TEST_F(StaleIndex, GivesNoOtherSampleByItsNumber) {
  for (const auto& [how, names] : versions()) {
    const auto index = indexed(names, true);
    indexed_dataset data(engine_, index);
    const auto whole = split_into_samples(names);
    const std::string what = fmt::format("{}: {}", how, fmt::join(names, " "));
    for (int i = 0; i < samples; ++i) {
      try {
        const sample s = data.get(i);
        EXPECT_EQ(s.key, fmt::format("{:03}", i)) << what;
        std::string text = s.key + " ";
        for (const field& f : s.fields) text += f.extension;
        EXPECT_TRUE(whole.contains(text)) << text << " of " << what;
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::integrity) << f.what();
        EXPECT_NE(std::string_view(how), "as indexed") << f.what();
      }
    }
  }
}

// Concatenated archives, with the end blocks of the first between samples.
TEST_F(StaleIndex, IsNoneOfConcatenatedShards) {
  store_->put("t", shard_of(members(0, 3)) + shard_of(members(3, 6)));
  const auto index = index_of(engine_, {"memory:t"});
  const auto plan = indexed_shards(index, {.lanes = 1}) | window_shuffle({.samples = 4});
  const auto got = outcome_of(engine_, interleaved(plan));
  EXPECT_EQ(got.given.size(), 6U);
  EXPECT_EQ(got.errors, 0U);
}

// Otherwise nothing would be read and nothing reported.
TEST_F(StaleIndex, TellsOfAShardThatHasNoSamplesByIt) {
  auto index = indexed(members(0, samples), false);
  index.shards.push_back(index.shards.front());
  index.shards.back().samples = 0;
  std::string told;
  set_log_sink([&](std::string_view line) { told += line; });
  const auto plan = indexed_shards(index, {.lanes = 1});
  set_log_sink({});
  EXPECT_NE(told.find("1 shard has no samples, so nothing is read there (first: memory:t of "),
            std::string::npos)
      << told;
}

// Captions, each of which now has a label next to it.
TEST_F(StaleIndex, HalvesNoSampleThatHasGrown) {
  store_->put("t", shard_of({"000.a", "001.a", "002.a", "003.a"}));
  auto index = index_of(engine_, {"memory:t"});
  std::string longer = shard_of(members(0, 4));
  longer.resize(longer.size() + 10240);
  store_->put("t", longer);
  const auto windows =
      outcome_of(engine_, indexed_shards(index, {.lanes = 1}) | window_shuffle({.samples = 100}));
  EXPECT_TRUE(windows.given.empty()) << *windows.given.begin();
  indexed_dataset data(engine_, index);
  for (int i = 0; i < 4; ++i) EXPECT_THROW(data.get(i), failure) << i;
}

// A rename that joins two samples of the index.
TEST_F(StaleIndex, SoIsOneOfOtherNames) {
  std::vector<std::string> names;
  for (int i = 0; i < samples; ++i) {
    for (const char* of : {"x/{:03}.a", "y/{:03}.b"}) {
      names.push_back(fmt::format(fmt::runtime(of), i));
    }
  }
  const untar_options joined{
      .rename = [](std::string_view name) { return std::string(name.substr(2)); }};
  for (const int lanes : {1, 2, 3, 5, 7}) {
    store_->put("t", shard_of(names));
    const auto index = index_of(engine_, {"memory:t"});
    const auto got = outcome_of(engine_, indexed_shards(index, {.lanes = lanes, .shuffle = false}) |
                                             untar(joined) | group_by_key());
    for (const auto& s : got.given) EXPECT_TRUE(s.ends_with(" ab")) << s << " " << lanes;
    if (got.given.size() < samples) EXPECT_GT(got.errors, 0U) << lanes;
  }
}

// A prefix stripped from all names alike changes no sample.
TEST_F(StaleIndex, ARenameOfWholeSamplesIsNone) {
  std::vector<std::string> names = members(0, samples);
  for (auto& name : names) name.insert(0, "x/");
  const untar_options stripped{
      .rename = [](std::string_view name) { return std::string(name.substr(2)); }};
  store_->put("t", shard_of(names));
  const auto index = index_of(engine_, {"memory:t"});
  const auto got = outcome_of(engine_, indexed_shards(index, {.lanes = 5, .shuffle = false}) |
                                           untar(stripped) | group_by_key());
  EXPECT_EQ(got.given.size(), samples);
  EXPECT_EQ(got.errors, 0U);
}

// While a shuffle reads held samples again, samples read ahead by windows occupy the memory.
TEST_F(StaleIndex, AWindowIsNotShuffledAgain) {
  const auto index = indexed(members(0, samples), true);
  const auto windows = indexed_shards(index, {.lanes = 1}) | window_shuffle({.samples = 10});
  EXPECT_THROW(engine_.run(windows | shuffle({.samples = 10})), failure);
  EXPECT_THROW(
      engine_.run(mix({{windows, 1}, {windows, 1}}, {.seed = 1}) | shuffle({.samples = 10})),
      failure);
}

// A state's windows belong to their size, seed and index.
TEST_F(StaleIndex, AStateWithinAnotherWindowIsRefused) {
  const auto plan_of = [&](const shard_index& index, const window_options& windows) {
    return interleaved(indexed_shards(index, {.lanes = 1}) | window_shuffle(windows));
  };
  const auto index = indexed(members(0, samples), true);
  auto data = engine_.run(plan_of(index, {.samples = 10, .seed = 1}));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(data.next());
  const state saved = state::from_json(data.save().to_json()).value();
  auto shifted = index;
  for (auto& block : shifted.shards[0].blocks) ++block;
  const auto resumed = [&](const plan<sample>& with) {
    auto rest = engine_.run(with);
    rest.restore(saved);
    int n = 0;
    while (rest.next()) ++n;
    return n;
  };
  EXPECT_EQ(resumed(plan_of(index, {.samples = 10, .seed = 1})), samples - 5);
  EXPECT_THROW(resumed(plan_of(index, {.samples = 10, .seed = 2})), failure);
  // The state saved after that is the one that was refused.
  auto refused = engine_.run(plan_of(index, {.samples = 10, .seed = 2}));
  refused.restore(saved);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(refused.next(), failure);
  EXPECT_EQ(refused.save().to_json(), saved.to_json());
  EXPECT_THROW(resumed(plan_of(shifted, {.samples = 10, .seed = 1})), failure);
}

}  // namespace
}  // namespace millrace
