#include <gtest/gtest.h>

#include <fstream>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/codecs/jpeg.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::text_shard;
using testing::with_memory_store;
using Errors = testing::text_shards;

// Budgets by count, by rate and in a row; skipped samples are listed in a file.
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
  // Two in a hundred, from the start, are never within one per cent and always within three.
  EXPECT_EQ(kind_of_end(eng.run(many() | every(50, 0) | on_error(skip_rate(0.01)))),
            errc::too_many_skipped);
  EXPECT_EQ(kind_of_end(eng.run(many() | every(50, 0) | on_error(skip_rate(0.03)))), errc::stopped);
  error_policy in_a_row = skip_errors();
  in_a_row.most_in_a_row = 5;
  EXPECT_EQ(kind_of_end(eng.run(many() | every(1, 50) | on_error(in_a_row))),
            errc::too_many_skipped);
  error_policy unwritten = skip_errors();
  unwritten.report = "/dev/full";
  EXPECT_EQ(kind_of_end(eng.run(many() | every(100, 0) | on_error(unwritten))), errc::io_failed);
  error_policy nowhere = skip_errors();
  nowhere.report = folder / "none/skipped";
  EXPECT_THROW(eng.run(many() | on_error(nowhere)), failure);
}

// A notice each, as many as the ledger lists, then debug messages for programs that asked for all.
TEST_F(Errors, SkippedSamplesAreTold) {
  const auto told = [&](bool tell_skipped) {
    auto how = with_memory_store(store_);
    how.tell_skipped = tell_skipped;
    engine eng(how);
    std::vector<std::string> lines;
    set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
    auto data = eng.run(interleaved(text_plan()) | map([](sample s) -> result<sample> {
                          return error(errc::bad_image, "bad").key(s.key).skippable();
                        }) |
                        on_error(skip_errors()));
    EXPECT_FALSE(data.next());
    set_log_sink(nullptr);
    return lines;
  };
  const auto notices = told(true);
  ASSERT_EQ(notices.size(), ledger::max_listed + 1);
  EXPECT_TRUE(notices.front().starts_with("skipped: bad_image: bad, at memory:t"))
      << notices.front();
  EXPECT_NE(notices.back().find("log_level::debug"), std::string::npos) << notices.back();
  EXPECT_TRUE(told(false).empty());
  set_log_level(log_level::debug);
  const auto all = told(true);
  EXPECT_EQ(all.size(), all_keys().size() + 1);
  EXPECT_EQ(told(false).size(), all_keys().size());
  set_log_level(log_level::notice);
}

TEST_F(Errors, AnImageOfAnotherKindIsNamed) {
  testing::tar_builder t;
  t.file("a.gif", "GIF89a").file("a.cls", "1");
  t.file("b.txt", "no image").file("b.cls", "1");
  store_->put("gif", t.end().str());
  engine eng(with_memory_store(store_));
  auto data = eng.run(shards({"memory:gif"}, {.lanes = 1}) | untar() | group_by_key() |
                      decode_jpeg({.size = 16, .train = false}) | on_error(skip_errors()));
  EXPECT_FALSE(data.next());
  auto told = data.counts().first_skipped;
  ASSERT_EQ(told.size(), 2U);
  if (told[0].find("key b") != std::string::npos) std::swap(told[0], told[1]);
  EXPECT_NE(told[0].find(", but a gif, at"), std::string::npos) << told[0];
  EXPECT_EQ(told[1].find("but a"), std::string::npos) << told[1];
}

// Each sample of the index is delivered, skipped or lost, in every epoch, also if the run was
// interrupted.
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

// After damage the rest of a shard is read, without half samples.
TEST_F(Errors, ResyncGoesOnBehindDamage) {
  std::string damaged = text_shard(0, 30, 700);
  constexpr std::size_t of_sample = 512 + 1024 + 512 + 512;
  damaged.replace(10 * of_sample, 512, std::string(512, 'x'));         // the header of a .txt
  damaged.replace(20 * of_sample + 1536, 512, std::string(512, 'x'));  // and that of a .cls
  store_->put("d", damaged);
  engine eng(with_memory_store(store_));
  const auto plan = [](bool resync) {
    return interleaved(shards({"memory:d"}, {.lanes = 1, .shuffle = false}) |
                       untar({.resync = resync}) | group_by_key()) |
           on_error(skip_errors());
  };
  auto strict = eng.run(plan(false));
  EXPECT_EQ(keys_of_epoch(strict).size(), 9U);  // the one before the damage may be incomplete
  auto data = eng.run(plan(true));
  for (const sample& s : data) EXPECT_EQ(s.fields.size(), 2U) << s.key;
  const ledger counts = data.counts();
  EXPECT_EQ(counts.delivered, 30U - 3);  // 9 may be incomplete, 10 and 20 are
  EXPECT_EQ(counts.lost_bytes, 1536U + 1024U);
  EXPECT_EQ(counts.skipped_in_all(), 3U);
}

// A rate is judged at the end of every epoch, however short.
TEST_F(Errors, ARateHoldsForShortEpochsToo) {
  engine eng(with_memory_store(store_));
  const auto run_with = [&](double rate, int bad) {
    int seen = 0;
    auto data =
        eng.run(interleaved(shards({"memory:t0"}, {.lanes = 1}) | untar() | group_by_key()) |
                map([&seen, bad](sample s) -> result<sample> {
                  if (++seen > bad) return s;
                  return error(errc::bad_image, "bad").skippable();
                }) |
                on_error(skip_rate(rate)));
    while (data.next()) {
    }
  };
  EXPECT_NO_THROW(run_with(0.05, 2));  // of 40
  try {
    run_with(0.05, 3);
    FAIL() << "3 of 40 are more than 5 %";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::too_many_skipped);
    EXPECT_EQ(f.why().message().find("the report lists"), std::string::npos);
  }
}

// Reads until the policy fails, and resumes there with another policy.
template <class P>
void expect_no_end_lost(engine& eng, const P& plan_with) {
  const auto key = [](const sample& s) { return s.key; };
  auto lenient = eng.run(plan_with(1));
  const auto all = testing::names_of(lenient, key);
  auto strict = eng.run(plan_with(0.05));
  std::vector<std::string> got;
  const auto read_on = [&](loader<sample>& data) {
    try {
      for (auto item = data.next(); got.size() < all.size(); item = data.next()) {
        got.push_back(item ? key(*item) : "end");
      }
      return false;
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::too_many_skipped) << f.why().message();
      return true;
    }
  };
  ASSERT_TRUE(read_on(strict));
  EXPECT_FALSE(got.empty());
  const state saved = strict.save();
  auto as_before = eng.run(plan_with(0.05));
  as_before.restore(saved);
  EXPECT_TRUE(read_on(as_before)) << "the policy is still broken";
  EXPECT_EQ(as_before.save().to_json(), saved.to_json());
  auto rest = eng.run(plan_with(1));
  rest.restore(state::from_json(saved.to_json()).value());
  EXPECT_FALSE(read_on(rest));
  EXPECT_EQ(got, all);
}

// A policy that fails at the end of an epoch fails before that end is yielded.
TEST_F(Errors, APolicyThatFailsAtAnEndOwesThatEnd) {
  engine eng(with_memory_store(store_));
  const auto failing = map([](sample s) -> result<sample> {
    if (s.key.back() != '7') return s;
    return error(errc::bad_image, "bad").skippable();
  });
  const auto head =
      interleaved(shards(urls(2), {.seed = 1, .lanes = 2, .epochs = 3}) | untar() | group_by_key());
  const auto same = map([](sample s) { return s; }, {.threads = 2});
  const auto policy = [](double rate) { return on_error(skip_rate(rate)); };
  expect_no_end_lost(eng, [&](double r) { return head | failing | policy(r); });
  expect_no_end_lost(eng, [&](double r) { return head | failing | prefetch(3) | policy(r); });
  expect_no_end_lost(eng, [&](double r) { return head | failing | policy(r) | prefetch(3); });
  expect_no_end_lost(eng, [&](double r) { return head | failing | policy(r) | same; });
  expect_no_end_lost(eng, [&](double r) { return head | failing | policy(r) | repeated(2); });
  expect_no_end_lost(eng, [&](double r) { return head | repeated(2) | failing | policy(r); });
  expect_no_end_lost(eng, [&](double r) { return head | failing | policy(r) | epochs_of(30); });
  expect_no_end_lost(eng, [&](double r) { return head | epochs_of(30) | failing | policy(r); });
}

// A sample that is too large is left out of its own shard only: other shards have samples with the
// same key.
TEST_F(Errors, ASampleIsLeftOutOfItsShardAlone) {
  const auto store = std::make_shared<memory_store>(100'000);
  const auto one = [](std::size_t bytes) {
    return testing::tar_builder()
        .file("video.bin", std::string(bytes, 'x'))
        .file("video.cls", "1")
        .end()
        .str();
  };
  store->put("v0", one(100));
  store->put("v1", one(36'000'000));
  store->put("v2", one(200));
  store->put("v3", one(300));
  engine eng(with_memory_store(store));
  const auto p = interleaved(shards({"memory:v0", "memory:v1", "memory:v2", "memory:v3"},
                                    {.lanes = 1, .shuffle = false, .epochs = 2}) |
                             untar() | group_by_key()) |
                 on_error(skip_errors());
  const auto sizes_of_rest = [](loader<sample>& data) {
    std::vector<std::size_t> out;
    for (int ends = 0; ends < 2;) {
      const auto s = data.next();
      if (s) out.push_back(s->fields.front().data.size());
      ends = s ? 0 : ends + 1;
      if (!s) out.push_back(0);
    }
    return out;
  };
  auto data = eng.run(p);
  const auto whole = sizes_of_rest(data);
  EXPECT_EQ(whole, (std::vector<std::size_t>{100, 200, 300, 0, 100, 200, 300, 0, 0}));
  EXPECT_EQ(data.counts().skipped_in_all(), 2U);
  for (std::size_t cut = 1; cut < 7; ++cut) {
    auto first = eng.run(p);
    for (std::size_t i = 0; i < cut; ++i) first.next();
    auto second = eng.run(p);
    second.restore(state::from_json(first.save().to_json()).value());
    EXPECT_EQ(
        sizes_of_rest(second),
        std::vector<std::size_t>(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end()))
        << cut;
  }
}

// A sample that fits no batch is skipped like any other; the others are grouped.
TEST_F(Errors, ASampleThatNoBatchCouldHoldIsSkipped) {
  const auto store = std::make_shared<memory_store>(100'000);
  testing::tar_builder tar;
  for (int i = 0; i < 5; ++i) {
    tar.file(fmt::format("k{}.bin", i), std::string(i == 1 ? 10'000'000 : 1000, 'x'));
  }
  store->put("a", tar.end().str());
  engine eng(with_memory_store(store, 2, 40_MiB));
  const auto head = shards({"memory:a"}, {.lanes = 1}) | untar() | group_by_key();
  for (const bool in_buckets : {false, true}) {
    auto data =
        in_buckets
            ? eng.run(interleaved(head) |
                      bucketed([](const sample&) { return 1; }, {{.up_to = 1, .size = 2}}) |
                      unbatched() | on_error(skip_errors()))
            : eng.run(interleaved(head) | batched(2) | unbatched() | on_error(skip_errors()));
    EXPECT_EQ(keys_of_epoch(data), (std::vector<std::string>{"k0", "k2", "k3", "k4"}));
    EXPECT_EQ(data.counts().skipped.at(errc::too_large), 1U);
  }
}

// An index is compared only with epochs that exist.
TEST_F(Errors, NothingIsLostOfWholeShards) {
  engine eng(with_memory_store(store_));
  const shard_index index = testing::index_of(eng, urls());
  auto data = eng.run(indexed_shards(index, {.epochs = 2}) | untar() | group_by_key());
  for (int asked = 0; asked < 5; ++asked) keys_of_epoch(data);
  EXPECT_EQ(data.counts().lost, 0U);
  EXPECT_EQ(data.counts().delivered, 2 * static_cast<std::uint64_t>(index.samples()));
}

// If every shard failed, that is the reason why there are no samples.
TEST_F(Errors, TheReasonIsGivenWhereNoShardCouldBeRead) {
  engine eng(with_memory_store(store_));
  auto data = eng.run(interleaved(shards({"memory:nowhere", "memory:neither"}, {.lanes = 1}) |
                                  untar() | group_by_key()) |
                      on_error(skip_up_to(100)));
  try {
    data.next();
    FAIL() << "no error";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::not_found);
    EXPECT_NE(f.why().message().find("memory:n"), std::string::npos) << f.why().message();
  }
}

// The number of fields and the length of names are bounded, because they are stored and compared.
TEST_F(Errors, ASampleOfTooManyFieldsIsLeftOut) {
  using testing::tar_builder;
  tar_builder many;
  for (std::size_t i = 0; i <= most_fields + 10; ++i) many.file(fmt::format("a.{}", i), "");
  many.file("b.txt", "whole");
  tar_builder names;
  for (int i = 0; i < 6; ++i) {
    names.extension('L', "a." + std::string(30'000, static_cast<char>('a' + i))).file("x", "");
  }
  names.file("b.txt", "whole");
  for (const tar_builder& t : {many.end(), names.end()}) {
    store_->put("large", t.str());
    engine eng(with_memory_store(store_));
    auto data =
        eng.run(interleaved(shards({"memory:large"}, {.lanes = 1}) | untar() | group_by_key()) |
                on_error(skip_up_to(1)));
    EXPECT_EQ(keys_of_epoch(data), std::vector<std::string>{"b"});
    EXPECT_EQ(data.counts().skipped.at(errc::too_large), 1U);
    auto scanned = eng.run(scan({"memory:large"}));
    EXPECT_EQ(scanned.next()->problems.size(), 1U);
  }
}

// Every second image has half the height, so no batch is ever full.
TEST_F(Errors, BatchesThatSizesCutShortAreDroppedInALoopAndTold) {
  constexpr int images = 20'000;  // more nested frames of coroutines than the stack holds
  testing::tar_builder t;
  const auto pixels = fake_image({.size = 24}, 1, 1);
  const auto file = encode_jpeg(pixels, 24, 24, 90);
  for (int i = 0; i < images; ++i) {
    t.file(fmt::format("k{:05}.jpg", i),
           std::string(reinterpret_cast<const char*>(file.data()), file.size()));
    t.file(fmt::format("k{:05}.cls", i), "1");
  }
  store_->put("sizes", t.end().str());
  const auto halved = [](image i) {
    if (i.where.position % 2 == 1) i.height /= 2;
    return i;
  };
  const auto plan = shards({"memory:sizes"}, {.lanes = 1}) | untar() | group_by_key() |
                    decode_jpeg({.size = 16, .train = false}) | map(halved);
  engine eng(with_memory_store(store_));
  std::string told;
  set_log_sink([&](std::string_view line) { told += line; });
  auto dropped = eng.run(plan | batch({.size = 16, .drop_last = true}));
  EXPECT_FALSE(dropped.next());
  set_log_sink(nullptr);
  EXPECT_EQ(dropped.counts().dropped, static_cast<std::uint64_t>(images));
  EXPECT_NE(told.find("drop_last leaves out batches"), std::string::npos) << told;
  EXPECT_EQ(told.find("drop_last"), told.rfind("drop_last leaves"));
  auto kept = eng.run(plan | batch({.size = 16}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(kept.next()->size(), 1U);
}

}  // namespace
}  // namespace millrace
