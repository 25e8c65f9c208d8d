#include <gtest/gtest.h>

#include <fstream>

#include "millrace/millrace.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::text_shard;
using testing::with_memory_store;
using Errors = testing::text_shards;

// Budgets by count, by rate and in a row; what is skipped is listed in a file.
TEST_F(Errors, SkippedSamplesAreListedAndBounded) {
  engine eng(with_memory_store(store_));
  testing::temporary_folder folder;
  int seen = 0;
  const auto every = [&](int n, int from) {
    seen = 0;
    return map([&seen, n, from](sample s) -> result<sample> {
      ++seen;
      if (seen < from || seen % n != 0) return s;
      return error(errc::bad_image, "bad").at(*s.url).offset(7).key(s.key).skippable();
    });
  };
  const auto kind_of_end = [](auto data) {
    try {
      while (data.next()) {
      }
    } catch (const failure& f) {
      return f.kind();
    }
    return errc::stopped;
  };
  const auto many = [&] { return interleaved(text_plan({.epochs = 40})) | epochs_of(10'000); };
  error_policy listed = skip_up_to(50);
  listed.report = folder / "skipped";
  EXPECT_EQ(kind_of_end(eng.run(many() | every(100, 0) | on_error(listed))),
            errc::too_many_skipped);
  std::ifstream in(listed.report);
  std::string line;
  std::getline(in, line);
  EXPECT_TRUE(line.starts_with(R"({"kind":"bad_image","url":"memory:t)")) << line;
  EXPECT_NE(line.find(R"("offset":7,"key":"s00)"), std::string::npos) << line;
  // Two in a hundred from the start are within one per cent nowhere, and within three everywhere.
  EXPECT_EQ(kind_of_end(eng.run(many() | every(50, 0) | on_error(skip_rate(0.01)))),
            errc::too_many_skipped);
  EXPECT_EQ(kind_of_end(eng.run(many() | every(50, 0) | on_error(skip_rate(0.03)))), errc::stopped);
  error_policy in_a_row = skip_errors();
  in_a_row.most_in_a_row = 5;
  EXPECT_EQ(kind_of_end(eng.run(many() | every(1, 50) | on_error(in_a_row))),
            errc::too_many_skipped);
  error_policy nowhere = skip_errors();
  nowhere.report = "/nonexistent/skipped";
  EXPECT_THROW(eng.run(many() | on_error(nowhere)), failure);
}

// Each sample of the index is delivered, skipped or lost, in every epoch, also where the run was
// broken off in between.
TEST_F(Errors, WithAnIndexTheLedgerAddsUpToIt) {
  engine eng(with_memory_store(store_));
  const shard_index index = testing::index_of(eng, urls());
  std::string cut = text_shard(2000, 50, 3000);
  cut.resize(cut.size() * 3 / 5);
  store_->put("t2", cut);
  std::string damaged = text_shard(4000, 60, 3000);
  damaged.replace(damaged.size() / 2 / 512 * 512, 4096, std::string(4096, 'x'));
  store_->put("t4", damaged);
  for (const bool whole_shards : {true, false}) {
    for (const bool resync : {false, true}) {
      const auto plan =
          interleaved(
              indexed_shards(index, {.seed = 1,
                                     .lanes = 2,
                                     .mode = whole_shards ? epoch_mode::exact : epoch_mode::equal,
                                     .epochs = 2}) |
              untar({.resync = resync}) | group_by_key() | shuffle({.samples = 20})) |
          on_error(skip_errors());
      const auto in_all = [](const ledger& l) { return l.delivered + l.skipped_in_all() + l.lost; };
      const std::int64_t samples = index.samples();
      const auto expected = static_cast<std::uint64_t>(whole_shards ? samples : samples / 2 * 2);
      auto data = eng.run(plan);
      for (std::uint64_t epoch = 1; epoch <= 2; ++epoch) {
        const auto came = keys_of_epoch(data).size();
        const ledger counts = data.counts();
        EXPECT_EQ(in_all(counts), epoch * expected) << counts.summary();
        EXPECT_GT(counts.lost, 0U);
        ASSERT_EQ(counts.epochs.size(), epoch);
        EXPECT_EQ(counts.epochs.back().passed, came);
      }
      for (const int stop : {1, 40, 100, 200, 230}) {
        auto first = eng.run(plan);
        for (int i = 0; i < stop; ++i) first.next();
        auto second = eng.run(plan);
        second.restore(state::from_json(first.save().to_json()).value());
        keys_of_epoch(second);
        EXPECT_EQ(in_all(first.counts()) + in_all(second.counts()), expected) << stop;
      }
    }
  }
}

// Behind damage the rest of a shard is read, and no half sample comes out.
TEST_F(Errors, ResyncGoesOnBehindDamage) {
  std::string damaged = text_shard(0, 30, 700);
  constexpr std::size_t of_sample = 512 + 1024 + 512 + 512;
  damaged.replace(10 * of_sample, 512, std::string(512, 'x'));         // the header of a .txt
  damaged.replace(20 * of_sample + 1536, 512, std::string(512, 'x'));  // and of a .cls
  store_->put("d", damaged);
  engine eng(with_memory_store(store_));
  const auto plan = [](bool resync) {
    return interleaved(shards({"memory:d"}, {.lanes = 1, .shuffle = false}) |
                       untar({.resync = resync}) | group_by_key()) |
           on_error(skip_errors());
  };
  auto strict = eng.run(plan(false));
  EXPECT_EQ(keys_of_epoch(strict).size(), 9U);  // the one before the damage may be cut
  auto data = eng.run(plan(true));
  for (const sample& s : data) EXPECT_EQ(s.fields.size(), 2U) << s.key;
  const ledger counts = data.counts();
  EXPECT_EQ(counts.delivered, 30U - 3);  // 9 may have been cut, 10 and 20 were
  EXPECT_EQ(counts.lost_bytes, 1536U + 1024U);
  EXPECT_EQ(counts.skipped_in_all(), 3U);
}

}  // namespace
}  // namespace millrace
