#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/state/records.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::with_memory_store;

class LostShards : public testing::text_shards {
 protected:
  // All shards but the third.
  std::shared_ptr<memory_store> rest() const {
    auto out = std::make_shared<memory_store>(10'000);
    for (const char* name : {"t0", "t1", "t3", "t4", "t5"}) out->put(name, *store_->find(name));
    return out;
  }

  engine whole_{with_memory_store(store_)};
  shard_index index_ = testing::index_of(whole_, urls());
  std::uint64_t lost_ = 50;  // its samples
};

// A shard that fails counts as its samples: those of the index, or as many as the other shards had.
TEST_F(LostShards, CountWithTheirSamples) {
  engine eng(with_memory_store(rest()));
  const shard_list_options once{.seed = 1, .lanes = 2};
  for (const bool is_indexed : {true, false}) {
    const auto end = [&](const error_policy& policy) -> std::string {
      auto data = eng.run((is_indexed ? indexed_shards(index_, once) : shards(urls(), once)) |
                          untar() | group_by_key() | on_error(policy));
      try {
        keys_of_epoch(data);
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::too_many_skipped);
        return f.why().message();
      }
      EXPECT_EQ(data.counts().skipped_in_all(), 1U);
      return "";
    };
    const auto part = static_cast<double>(lost_) / static_cast<double>(index_.samples());
    EXPECT_NE(end(skip_rate(part / 2)).find("1 shard gave no sample"), std::string::npos);
    EXPECT_EQ(end(skip_rate(part * 2)), "");
    EXPECT_NE(end(skip_up_to(lost_ / 2)).find("lost with shards"), std::string::npos);
    EXPECT_EQ(end(skip_up_to(lost_ * 2)), "");
    EXPECT_EQ(end(skip_errors()), "");
  }
}

// In one line for an epoch, however many lanes lack samples.
TEST_F(LostShards, AreToldOnceAnEpoch) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  engine eng(with_memory_store(rest()));
  auto data = eng.run(indexed_shards(index_, {.seed = 1, .lanes = 8, .epochs = 2}) | untar() |
                      group_by_key() | on_error(skip_errors()));
  keys_of_epoch(data);
  keys_of_epoch(data);
  set_log_sink({});
  EXPECT_EQ(std::ranges::count_if(lines,
                                  [](const std::string& line) {
                                    return line.find("lost with broken shards") != line.npos;
                                  }),
            2);
}

// A shard that is longer than its index says is reported by the lane that reads its last sample,
// perhaps its only one of that shard: that is not a lost shard.
TEST_F(LostShards, APartOfAShardIsNotAllOfIt) {
  shard_index shorter = index_;
  for (auto& s : shorter.shards) {
    --s.samples;
    s.blocks.clear();
    s.names.clear();
  }
  for (int lanes = 1; lanes <= 40; ++lanes) {
    auto data = whole_.run(indexed_shards(shorter, {.lanes = lanes, .mode = epoch_mode::equal}) |
                           untar() | group_by_key() | on_error(skip_up_to(shorter.shards.size())));
    const auto given = keys_of_epoch(data).size();
    EXPECT_EQ(data.counts().lost, 0U) << lanes;
    EXPECT_EQ(given, static_cast<std::size_t>(shorter.samples() / lanes * lanes)) << lanes;
  }
}

// A damaged shard that lacks nothing of its index is not one of which nobody knows what it lacks.
TEST_F(LostShards, AnIndexKnowsThatNothingIsLost) {
  const std::string whole = *store_->find("t3");
  const auto store = rest();
  store->put("t2", *store_->find("t2"));
  store->put("t3", whole.substr(0, whole.size() * 3 / 10));
  engine eng(with_memory_store(store));
  const shard_list_options once{.seed = 1, .lanes = 2};
  auto without = eng.run(shards(urls(), once) | untar() | group_by_key() | on_error(skip_errors()));
  const auto there = static_cast<std::int64_t>(keys_of_epoch(without).size());
  EXPECT_EQ(without.counts().incomplete_shards, 1U);

  shard_index index = index_;
  shard_index::shard& cut = index.shards[3];
  cut.samples -= index_.samples() - there;
  cut.blocks.clear();
  cut.names.clear();
  auto with =
      eng.run(indexed_shards(index, once) | untar() | group_by_key() | on_error(skip_errors()));
  EXPECT_EQ(std::ssize(keys_of_epoch(with)), there);
  EXPECT_EQ(with.counts().skipped_in_all(), 1U);
  EXPECT_EQ(with.counts().lost, 0U);
  EXPECT_EQ(with.counts().incomplete_shards, 0U);
}

// Without an index, an empty shard counts like a missing one, and a truncated one is at least
// reported.
TEST_F(LostShards, EmptyAndCutOnesAreToldWithoutAnIndex) {
  const auto store = rest();
  store->put("t2", "");
  const std::string whole = *store_->find("t3");
  store->put("t3", whole.substr(0, whole.size() * 3 / 10));
  engine eng(with_memory_store(store));
  const auto end = [&](const error_policy& policy) -> std::string {
    auto data = eng.run(shards(urls(), {.seed = 1, .lanes = 2}) | untar() | group_by_key() |
                        on_error(policy));
    try {
      keys_of_epoch(data);
    } catch (const failure& f) {
      return f.why().message();
    }
    EXPECT_EQ(data.counts().skipped_in_all(), 2U);
    return "";
  };
  const std::string why = end(skip_up_to(lost_ / 2));
  EXPECT_NE(why.find("1 shard gave no sample"), std::string::npos) << why;
  EXPECT_NE(why.find("1 shard could not be read whole"), std::string::npos) << why;
  EXPECT_EQ(end(skip_up_to(lost_ * 2)), "");
}

// A shard of which an error was reported before it breaks has lost that sample, not all of them: in
// an unbroken run, and in one that is resumed in between.
TEST_F(LostShards, AreNotThoseThatBreakAfterAReportedError) {
  testing::tar_builder broken;
  for (int i = 0; i < 3; ++i) {
    broken.file(fmt::format("x{}.txt", i), std::string(100, 'a'))
        .file(fmt::format("x{}.cls", i), "1");
  }
  std::string bytes = broken.str();
  bytes[1024] ^= 1;                                // the header of the second file
  store_->put("t0", bytes.substr(0, 2048 + 600));  // cut within the second sample
  const auto plan = shards(urls(), {.lanes = 1, .shuffle = false}) | untar({.resync = true}) |
                    group_by_key() | on_error(skip_up_to(20));
  auto data = whole_.run(plan);
  std::vector<std::string> all;
  std::vector<state> saved = {data.save()};
  while (auto s = data.next()) {
    all.push_back(s->key);
    saved.push_back(data.save());
  }
  EXPECT_EQ(data.counts().skipped_in_all(), 2U);
  for (std::size_t at = 0; at < saved.size(); at += 40) {
    auto again = whole_.run(plan);
    again.restore(saved[at]);
    const auto rest = keys_of_epoch(again);
    EXPECT_EQ(rest, std::vector(all.begin() + static_cast<std::ptrdiff_t>(at), all.end())) << at;
  }
}

// Errors of sources name the byte requested and hide parts of URLs; shards that could not be opened
// are still distinguished.
TEST_F(LostShards, OfServersCountAsThoseOfDisks) {
  auto how = with_memory_store(rest());
  how.add_sources = [add = how.add_sources](source_registry& sources) {
    add(sources);
    sources.add("none",
                [](source_context, std::string where, url,
                   byte_range range) -> awaitable<result<std::unique_ptr<byte_source>>> {
                  co_return error(errc::http_status, "the server answered 404")
                      .at(where)
                      .offset(range.begin)
                      .skippable();
                });
  };
  engine eng(how);
  auto all = urls();
  all[2] = "none://host/get?id=0";
  for (int i = 1; i < 5; ++i) all.push_back(fmt::format("none://host/get?id={}", i));
  const auto counted = [&](const error_policy& policy) {
    auto data =
        eng.run(shards(all, {.seed = 1, .lanes = 2}) | untar() | group_by_key() | on_error(policy));
    const std::size_t given = keys_of_epoch(data).size();
    const ledger counts = data.counts();
    EXPECT_EQ(counts.skipped_in_all(), 5U);
    EXPECT_EQ(counts.first_skipped.size(), 5U);
    EXPECT_EQ(counts.lost + counts.skipped_in_all(), given);  // as many shards came as failed
  };
  counted(skip_rate(0.51));
  EXPECT_THROW(counted(skip_rate(0.45)), failure);
}

// Of two policies, the one that skipped a shard counts what is lost with it.
TEST_F(LostShards, AreCountedByOneOfTwoPolicies) {
  engine eng(with_memory_store(rest()));
  const auto same = [](sample s) { return s; };
  for (const bool is_indexed : {true, false}) {
    const shard_list_options twice{.seed = 1, .lanes = 2, .epochs = 2};
    auto samples = (is_indexed ? indexed_shards(index_, twice) : shards(urls(), twice)) | untar() |
                   group_by_key();
    auto data = eng.run(interleaved(samples) | on_error(skip_errors()) | map(same, {.threads = 2}) |
                        on_error(skip_up_to(5)));
    std::size_t given = 0;
    for (int epoch = 0; epoch < 2; ++epoch) given += keys_of_epoch(data).size();
    const ledger counts = data.counts();
    ASSERT_EQ(counts.epochs.size(), 2U);
    EXPECT_EQ(counts.epochs[0].passed + counts.epochs[1].passed, given);
    EXPECT_EQ(counts.epochs[1].skipped.size(), 1U);
    EXPECT_GT(counts.lost, 5U);
  }
}

// Losses before a state was saved count after it.
TEST_F(LostShards, CountAfterAResume) {
  engine eng(with_memory_store(rest()));
  const auto plan = [&](std::uint64_t most) {
    return interleaved(indexed_shards(index_, {.seed = 1, .lanes = 2, .epochs = 2}) | untar() |
                       group_by_key()) |
           on_error(skip_up_to(most));
  };
  auto first = eng.run(plan(1000));
  keys_of_epoch(first);
  const state saved = first.save();
  auto enough = eng.run(plan(2 * lost_));
  enough.restore(saved);
  EXPECT_NO_THROW(keys_of_epoch(enough));
  auto too_few = eng.run(plan(2 * lost_ - 1));
  too_few.restore(saved);
  EXPECT_THROW(keys_of_epoch(too_few), failure);
}

// A file that is not an archive, or is truncated in its first sample, yields as little as a missing
// one.
TEST_F(LostShards, ArePagesAndBeginsInTheirPlaceAsWell) {
  const auto store = rest();
  const std::string page = "<!DOCTYPE html><html><body>Log in to go on</body></html>";
  testing::tar_builder whole;
  whole.file("k0.cls", "1").file("k0.bin", std::string(5000, 'x')).file("k1.cls", "1").end();
  for (const std::string& there : {page + std::string(1000, ' '), page, whole.str().substr(0, 300),
                                   whole.str().substr(0, 1100), whole.str().substr(0, 4000)}) {
    store->put("t2", there);
    engine eng(with_memory_store(store));
    auto data = eng.run(shards(urls(), {.seed = 1, .lanes = 2}) | untar() | group_by_key() |
                        on_error(skip_errors()));
    const std::size_t given = keys_of_epoch(data).size();
    EXPECT_EQ(data.counts().lost + data.counts().skipped_in_all(), given / 5) << there.size();
  }
}

// Samples that a command output before it failed were not lost.
TEST_F(LostShards, AreNotThoseOfCommandsThatFailAtTheirEnd) {
  const testing::temporary_folder folder;
  std::vector<std::string> commands;
  for (int i = 0; i < 4; ++i) {
    const std::string name = fmt::format("t{}", i);
    std::ofstream(folder / name) << *store_->find(name);
    commands.push_back(fmt::format("pipe:cat {}; exit 1", folder / name));
  }
  auto how = with_memory_store(store_);
  how.source.allow_pipe = true;
  engine eng(how);
  auto data = eng.run(shards(commands, {.seed = 1, .lanes = 2}) | untar() | group_by_key() |
                      on_error(skip_errors()));
  keys_of_epoch(data);
  EXPECT_EQ(data.counts().skipped_in_all(), 4U);
  EXPECT_EQ(data.counts().lost, 0U);
}

// If a shard disappears after it was read to its end, only its held samples are lost.
TEST_F(LostShards, AreNotThoseOfWhichSamplesAreReadAgain) {
  const auto p =
      interleaved(text_plan({.lanes = 1, .shuffle = false}, 60)) | on_error(skip_errors());
  engine eng(with_memory_store(store_));
  auto first = eng.run(p);
  std::set<std::string> given;
  // The first shard has forty samples: it has been read to its end.
  while (given.size() < 10) given.insert(first.next().value().key);
  const state saved = first.save();
  std::vector<origin> held;  // of the first shard
  for (const auto& [name, samples] : saved.all_held()) {
    std::ranges::copy_if(samples, std::back_inserter(held),
                         [](const origin& o) { return o.shard == 0; });
  }
  ASSERT_TRUE(std::ranges::any_of(held, [](const origin& o) { return o.offset == 0; }));
  const auto without = std::make_shared<memory_store>(10'000);
  for (const char* name : {"t1", "t2", "t3", "t4", "t5"}) without->put(name, *store_->find(name));
  engine later(with_memory_store(without));
  auto second = later.run(p);
  second.restore(saved);
  for (const std::string& key : keys_of_epoch(second)) given.insert(key);
  EXPECT_EQ(second.counts().skipped_in_all(), held.size());
  EXPECT_EQ(second.counts().lost, 0U);
  EXPECT_EQ(given.size() + held.size(), all_keys().size());
}

// Whole lost shards are judged over the complete epoch, even if the run was resumed within it, by
// other ranks as well.
TEST_F(LostShards, CountWithTheirSamplesWhereverTheRunWasResumed) {
  engine eng(with_memory_store(rest()));
  const auto plan_of = [&](int rank, int world, const error_policy& policy) {
    return shards(urls(), {.seed = 1, .rank = rank, .world_size = world, .lanes = 2}) | untar() |
           group_by_key() | on_error(policy);
  };
  const auto failed_in = [&](const state& s) {
    std::int64_t all = 0;
    for (const auto& [name, values] : s.records()) {
      if (name.starts_with(skipped_record)) all += values.front();
    }
    return all;
  };
  auto unbroken = eng.run(plan_of(0, 1, skip_errors()));
  const std::size_t given = keys_of_epoch(unbroken).size();
  const std::int64_t failed = failed_in(unbroken.save());
  EXPECT_GT(failed, static_cast<std::int64_t>(lost_ / 2));
  for (std::size_t n = 0; n <= given; n += testing::every()) {
    auto first = eng.run(plan_of(0, 1, skip_errors()));
    for (std::size_t i = 0; i < n; ++i) first.next();
    const state saved = state::from_json(first.save().to_json()).value();
    auto second = eng.run(plan_of(0, 1, skip_errors()));
    second.restore(saved);
    EXPECT_EQ(keys_of_epoch(second).size(), given - n);
    EXPECT_EQ(failed_in(second.save()), failed) << "resumed after " << n;
    if (n % 20 != 0) continue;
    std::int64_t by_two = 0;
    for (int rank = 0; rank < 2; ++rank) {
      auto third = eng.run(plan_of(rank, 2, skip_errors()));
      third.restore(saved);
      keys_of_epoch(third);
      by_two += failed_in(third.save());
    }
    EXPECT_GT(by_two, failed / 2) << "resumed by two ranks after " << n;
    EXPECT_LT(by_two, failed * 2) << "resumed by two ranks after " << n;
  }
}

// A state of a version that counted for all ranks together.
TEST_F(LostShards, AreCountedOnByAnOlderState) {
  engine eng(with_memory_store(rest()));
  const auto p = interleaved(text_plan({.lanes = 1})) | on_error(skip_up_to(3));
  auto first = eng.run(p);
  first.next();
  const state saved = first.save();
  state older;
  for (const auto& [name, values] : saved.records()) {
    const bool counts = name.starts_with(skipped_record);
    older.put(counts ? skipped_record : name, counts ? state::record{3, 0, 10} : values);
  }
  for (const auto& [name, samples] : saved.all_held()) older.hold(name, samples);
  auto second = eng.run(p);
  second.restore(older);
  try {
    keys_of_epoch(second);
    FAIL() << "one more was skipped than may be";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::too_many_skipped) << f.what();
  }
}

}  // namespace
}  // namespace millrace
