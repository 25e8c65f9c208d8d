// Samples of several shards: join(), with companions as they should be and as they should not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/formats/joined_source.h"
#include "tests/support/loaders.h"
#include "tests/support/packed.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::tar_builder;
using testing::text_shard;
using testing::with_memory_store;

std::string key(int i) {
  return fmt::format("s{:06}", i);
}

// A shard with a file KEY.EXTENSION for each number, which contains "EXTENSION of KEY".
std::string shard_of(const std::vector<int>& numbers, const std::string& extension = "cap",
                     std::size_t padding = 0) {
  tar_builder out;
  for (const int i : numbers) {
    out.file(key(i) + "." + extension, extension + " of " + key(i) + std::string(padding, '.'));
  }
  return out.end().str();
}

std::vector<int> range(int first, int last) {
  std::vector<int> out;
  for (int i = first; i < last; ++i) out.push_back(i);
  return out;
}

// A sample as a text: key, and the beginning of its companion's field.
std::string told(const sample& s) {
  const field* const f = s.find("cap");
  return s.key + ": " + (f ? std::string(f->data.text().substr(0, 14)) : "alone");
}

class Join : public ::testing::Test {
 protected:
  Join() {
    set_log_sink([this](std::string_view line) { notices_.emplace_back(line); });
  }
  ~Join() override { set_log_sink({}); }

  // One main shard of samples 0 to `n` - 1, and its companion.
  void put(int n, std::string companion, std::size_t payload = 100) {
    store_->put("m/0.tar", text_shard(0, n, payload));
    store_->put("c/0.tar", std::move(companion));
  }
  static lane_plan<sample> head(int lanes = 1) {
    return shards({"memory:m/0.tar"}, {.lanes = lanes}) | untar() | group_by_key();
  }
  static lane_plan<sample> joined(const join_options& o = {}) {
    return head() | join("memory:c/{}.tar", o);
  }
  struct outcome {
    std::vector<std::string> told;
    ledger counts;
  };
  outcome run(const plan<sample>& what, std::size_t memory = 256_MiB) {
    engine eng(with_memory_store(store_, 2, memory));
    auto data = eng.run(what);
    outcome out;
    bounded("join", [&] {
      while (auto s = data.next()) out.told.push_back(told(*s));
      return 0;
    });
    out.counts = data.counts();
    return out;
  }
  outcome run(const join_options& o = {}) { return run(interleaved(joined(o))); }
  // Skips errors, which are in counts.first_skipped. A further shard, whose companion is whole,
  // makes sure that some sample comes: it is not in the outcome.
  outcome run_skipping(const join_options& o = {}, std::size_t memory = 256_MiB) {
    store_->put("m/last.tar", shard_of({999}, "txt"));
    store_->put("c/last.tar", shard_of({999}));
    auto out =
        run(shards({"memory:m/0.tar", "memory:m/last.tar"}, {.lanes = 1, .shuffle = false}) |
                untar() | group_by_key() | join("memory:c/{}.tar", o) | on_error(skip_errors()),
            memory);
    EXPECT_EQ(out.told.back(), key(999) + ": cap of " + key(999));
    out.told.pop_back();
    return out;
  }
  std::string error_of_run(const join_options& o = {}) {
    try {
      run(o);
    } catch (const failure& f) {
      return f.why().message();
    }
    return "no error";
  }
  static std::vector<std::string> whole(int n) {
    std::vector<std::string> out;
    for (int i = 0; i < n; ++i) out.push_back(key(i) + ": cap of " + key(i));
    return out;
  }
  bool was_told(std::string_view part) const {
    return std::ranges::any_of(notices_, [&](const auto& n) { return n.find(part) != n.npos; });
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(4'000);
  std::vector<std::string> notices_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Join, NamesCompanionsByTheMainShard) {
  EXPECT_EQ(companion_url("captions/{}.tar", "s3://b/f/train-000017.tar"),
            "captions/train-000017.tar");
  EXPECT_EQ(companion_url("https://h/{}/{}.{0..9}.tar", "a/0.tar.gz"), "https://h/0/0.{0..9}.tar");
  EXPECT_EQ(companion_url("{}", "https://h/x.v2-07.TGZ?key=a/b"), "x.v2-07");
  EXPECT_EQ(companion_url("c/{}", "plain"), "c/plain");
}

TEST_F(Join, AddsTheFieldsOfTheSameKey) {
  put(30, shard_of(range(0, 30)));
  const auto got = run();
  EXPECT_EQ(got.told, whole(30));
  EXPECT_EQ(got.counts.companions_alone, 0U);
  EXPECT_TRUE(notices_.empty()) << notices_.front();
}

TEST_F(Join, SampleHasPlaceAndFieldsOfTheMainShard) {
  put(2, shard_of({0, 1}));
  engine eng(with_memory_store(store_));
  auto data = eng.run(joined());
  const auto first = data.next();
  EXPECT_EQ(first->fields.size(), 3U);  // txt, cls, cap
  EXPECT_EQ(*first->url, "memory:m/0.tar");
  EXPECT_EQ(first->where.offset, 0);
}

TEST_F(Join, SeveralCompanions) {
  put(20, shard_of(range(0, 20)));
  store_->put("d/0.tar", shard_of(range(0, 20), "seg.png", 9'000));
  engine eng(with_memory_store(store_));
  auto data = eng.run(joined() | join("memory:d/{}.tar") | shuffle({.samples = 7}));
  int n = 0;
  while (auto s = data.next()) {
    ++n;
    EXPECT_EQ(told(*s), s->key + ": cap of " + s->key);
    ASSERT_NE(s->find("seg.png"), nullptr);
    EXPECT_TRUE(s->find("seg.png")->data.text().starts_with("seg.png of " + s->key));
  }
  EXPECT_EQ(n, 20);
}

TEST_F(Join, ChoosesFields) {
  tar_builder both;
  for (int i = 0; i < 3; ++i)
    both.file(key(i) + ".txt", "clash").file(key(i) + ".cap", "cap of " + key(i));
  put(3, both.end().str());
  EXPECT_EQ(run({.fields = "cap;seg.*"}).told, whole(3));
  const std::string why = error_of_run();
  EXPECT_SAYS(why, "duplicate_field");
  EXPECT_SAYS(why, "'txt'");
  EXPECT_SAYS(why, "memory:c/0.tar");
  EXPECT_SAYS(why, "memory:m/0.tar");
  EXPECT_SAYS(why, key(0));
}

TEST_F(Join, MissingOnesAreErrorsLeftOutOrGivenAlone) {
  put(8, shard_of({0, 1, 3, 4, 7}));
  const std::string why = error_of_run();
  EXPECT_SAYS(why, "missing_field");
  EXPECT_SAYS(why, "memory:c/0.tar");
  EXPECT_SAYS(why, key(2));
  EXPECT_SAYS(why, "join_options.missing");
  const auto skipped = run({.missing = missing_companion::skip});
  std::vector<std::string> expected;
  for (const int i : {0, 1, 3, 4, 7}) expected.push_back(whole(8)[static_cast<std::size_t>(i)]);
  EXPECT_EQ(skipped.told, expected);
  EXPECT_EQ(skipped.counts.left_out, 3U);
  EXPECT_EQ(skipped.counts.without_companion, 0U);
  EXPECT_TRUE(was_told("has no companion"));
  EXPECT_FALSE(was_told("another order"));
  const auto alone = run({.missing = missing_companion::none});
  ASSERT_EQ(alone.told.size(), 8U);
  EXPECT_EQ(alone.told[2], key(2) + ": alone");
  EXPECT_EQ(alone.counts.without_companion, 3U);
  EXPECT_EQ(alone.counts.left_out, 0U);
  const auto failed = run_skipping();
  EXPECT_EQ(failed.told, expected);
  EXPECT_EQ(failed.counts.skipped.at(errc::missing_field), 3U);
}

TEST_F(Join, MissingShards) {
  store_->put("m/0.tar", text_shard(0, 5));
  const std::string why = error_of_run();
  EXPECT_SAYS(why, "not_found");
  EXPECT_SAYS(why, "memory:c/0.tar");
  EXPECT_SAYS(why, key(0));
  EXPECT_TRUE(run({.missing = missing_companion::none}).told.size() == 5);
  EXPECT_TRUE(was_told("no companion shard memory:c/0.tar"));
  const auto failed = run_skipping();
  EXPECT_EQ(failed.counts.skipped.at(errc::not_found), 5U);
}

TEST_F(Join, LeavingAllOutIsAnEpochWithoutSamples) {
  store_->put("m/0.tar", text_shard(0, 5));
  try {
    run({.missing = missing_companion::skip});
    ADD_FAILURE();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::no_samples);
  }
}

TEST_F(Join, EmptyCompanion) {
  put(4, tar_builder().end().str());
  EXPECT_SAYS(error_of_run(), "missing_field");
  EXPECT_EQ(run({.missing = missing_companion::none}).told[3], key(3) + ": alone");
  put(4, "");  // not even end blocks: it was cut
  EXPECT_SAYS(error_of_run({.missing = missing_companion::none}), "truncated");
}

TEST_F(Join, CompanionsAloneAreCountedAndTold) {
  put(10, shard_of(range(-0, 40)));
  const auto got = run();
  EXPECT_EQ(got.told, whole(10));
  EXPECT_EQ(got.counts.companions_alone, 30U);
  EXPECT_TRUE(was_told("30 companion samples without a sample in the main shard"));
  EXPECT_SAYS(got.counts.summary(), "30 companion samples without a main one");
}

// In every other order the same samples come, whether what was read ahead fits or not.
TEST_F(Join, OtherOrders) {
  const int n = 200;
  std::vector<int> reversed = range(0, n);
  std::ranges::reverse(reversed);
  std::vector<int> scattered;
  for (int i = 0; i < n; ++i) scattered.push_back(i * 83 % n);
  std::vector<int> near = range(0, n);
  for (std::size_t i = 0; i + 3 < near.size(); i += 4) std::swap(near[i], near[i + 3]);
  for (const auto& order : {reversed, scattered, near}) {
    for (const std::size_t held : {std::size_t{0}, std::size_t{1}, std::size_t{20'000}}) {
      put(n, shard_of(order, "cap", 3'000));
      notices_.clear();
      const auto got = run({.held_bytes = held});
      EXPECT_EQ(got.told, whole(n)) << held;
      EXPECT_EQ(got.counts.companions_alone, 0U);
      EXPECT_EQ(was_told("another order"), held > 0 && (held == 1 || order != near))
          << held << " " << order[1];
    }
  }
}

// Samples of which the main shard has a part: in order, and with more than can be held between.
TEST_F(Join, SparseMainShard) {
  std::vector<int> wanted;
  for (int i = 0; i < 300; i += 7) wanted.push_back(i);
  store_->put("m/0.tar", shard_of(wanted, "txt"));
  store_->put("c/0.tar", shard_of(range(0, 300), "cap", 2'000));
  const auto got = run({.held_bytes = 30'000});
  ASSERT_EQ(got.told.size(), wanted.size());
  EXPECT_EQ(got.told.back(), key(294) + ": cap of " + key(294));
  EXPECT_EQ(got.counts.companions_alone, 300 - wanted.size());
  EXPECT_FALSE(was_told("another order"));
}

TEST_F(Join, TheFirstOfRepeatedKeysCounts) {
  tar_builder twice;
  for (const int i : {0, 1, 2}) twice.file(key(i) + ".cap", "cap of " + key(i));
  for (const int i : {1, 2, 3, 1})
    twice.file(key(i) + ".cap", i < 3 ? "wrong" : "cap of " + key(i));
  put(4, twice.end().str());
  const auto got = run();
  EXPECT_EQ(got.told, whole(4));
  EXPECT_EQ(got.counts.companions_alone, 3U);
  EXPECT_TRUE(was_told("3 of them repeated keys"));
  // A main shard may have a key twice: both get the same.
  store_->put("m/0.tar", shard_of({0, 1, 0, 2, 1}, "txt"));
  EXPECT_EQ(run().told, (std::vector<std::string>{whole(4)[0], whole(4)[1], whole(4)[0],
                                                  whole(4)[2], whole(4)[1]}));
}

TEST_F(Join, RepeatedFieldsOfACompanionAreAnErrorOfThatSample) {
  tar_builder twice;
  twice.file(key(0) + ".cap", "cap of " + key(0))
      .file(key(1) + ".cap", "a")
      .file(key(1) + ".CAP", "b");
  twice.file(key(2) + ".cap", "cap of " + key(2));
  put(3, twice.end().str());
  const auto got = run_skipping({.missing = missing_companion::none});
  EXPECT_EQ(got.told, (std::vector<std::string>{whole(3)[0], whole(3)[2]}));
  EXPECT_EQ(got.counts.skipped.at(errc::duplicate_field), 1U);
  EXPECT_SAYS(got.counts.first_skipped.front(), "memory:c/0.tar");
}

// What is before the cut comes; what is after it is an error, and never "missing".
TEST_F(Join, TruncatedCompanions) {
  const int n = 30;
  const std::string all = shard_of(range(0, n), "cap", 700);
  for (std::size_t cut = 100; cut < all.size(); cut += 2'777) {
    put(n, all.substr(0, cut));
    for (const auto missing : {missing_companion::error, missing_companion::none}) {
      const auto got = run_skipping({.missing = missing});
      const std::uint64_t failed = got.counts.skipped_in_all();
      EXPECT_EQ(got.told.size() + failed, static_cast<std::size_t>(n)) << cut;
      auto expected = whole(n);
      expected.resize(got.told.size());
      EXPECT_EQ(got.told, expected);
      if (failed == 0) continue;  // only the end blocks are missing
      EXPECT_SAYS(got.counts.first_skipped.front(), "memory:c/0.tar");
      EXPECT_SAYS(got.counts.first_skipped.front(), "s0000");
    }
  }
  put(n, all.substr(0, 1000));
  const std::string why = error_of_run();
  EXPECT_SAYS(why, "truncated");
  EXPECT_SAYS(why, "byte");
}

TEST_F(Join, DamagedCompanions) {
  const int n = 10;
  std::string all = shard_of(range(0, n));
  all.replace(5 * 1024, 200, std::string(200, 'x'));
  put(n, all);
  const auto got = run_skipping();
  EXPECT_EQ(got.told.size(), 4U);  // the one before may go on after the damage
  EXPECT_EQ(got.counts.skipped.at(errc::bad_archive), 6U);
  // With resync only what is lost fails.
  const auto more = run_skipping({.untar = {.resync = true}});
  EXPECT_GE(more.told.size(), 8U);
  EXPECT_EQ(more.told.size() + more.counts.skipped_in_all(), 10U);
}

// What is given after damage depends on the shards, not on what was held or read again.
TEST_F(Join, DamageIsTheSameWhateverWasAskedBefore) {
  tar_builder two;
  for (const int i : {4, 0, 1, 2, 3}) {
    two.file(key(i) + ".cap", "cap of " + key(i)).file(key(i) + ".seg", std::string(900, 's'));
  }
  std::string damaged = two.end().str();
  const std::size_t at = damaged.find(key(1) + ".seg");
  ASSERT_NE(at, std::string::npos);
  damaged[at + 1] ^= 1;  // its checksum is wrong now
  store_->put("m/0.tar", shard_of({0, 4, 2, 3}, "txt"));
  store_->put("c/0.tar", damaged);
  const std::vector<std::string> whole_ones = {
      key(0) + ": cap of " + key(0), key(4) + ": cap of " + key(4), key(2) + ": cap of " + key(2),
      key(3) + ": cap of " + key(3)};
  for (const std::size_t held : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_EQ(run_skipping({.held_bytes = held, .untar = {.resync = true}}).told, whole_ones)
        << held;
  }
}

TEST_F(Join, MoreSamplesThanCanBeListed) {
  tar_builder many;
  for (int i = 40'000; i > 0; --i) many.file(key(i) + ".cap", "");
  put(2, many.end().str());
  try {
    run(interleaved(joined()), 64_MiB);
    ADD_FAILURE();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::too_large);
    EXPECT_SAYS(f.why().message(), "MILLRACE_MEMORY");
    EXPECT_SAYS(f.why().message(), "memory:c/0.tar");
  }
}

TEST_F(Join, CompressedCompanions) {
  const int n = 60;
  std::vector<int> order = range(0, n);
  std::swap(order[3], order[50]);
  for (const int filter : {ARCHIVE_FILTER_GZIP, ARCHIVE_FILTER_XZ, ARCHIVE_FILTER_ZSTD}) {
    const std::string content = testing::packed(shard_of(order, "cap", 2'000), filter);
    if (content.empty()) continue;
    put(n, content);
    EXPECT_EQ(run({.held_bytes = 10'000}).told, whole(n)) << filter;
    EXPECT_EQ(run().told, whole(n)) << filter;
  }
}

TEST_F(Join, LargeFieldsOfSmallSamples) {
  const int n = 12;
  put(n, shard_of(range(0, n), "cap", 900'000));
  EXPECT_EQ(run(interleaved(joined())).told, whole(n));
  EXPECT_EQ(
      run(joined() | shuffle({.samples = 5}) | map(testing::same, {.threads = 2})).told.size(),
      12U);
  put(n, shard_of(range(0, n), "cap", 40'000'000));
  const auto got = run_skipping({}, 64_MiB);
  EXPECT_EQ(got.counts.skipped.at(errc::too_large), 12U);
}

TEST_F(Join, RefusesWhatItCannotJoin) {
  const auto refused = [](auto make) {
    try {
      make();
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::usage);
      EXPECT_NE(f.why().what_to_do(), "");
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused([] { return join("captions.tar"); }));
  EXPECT_TRUE(refused([] { return join("pipe:cat {}.tar"); }));
  EXPECT_TRUE(refused([] { return head() | shuffle() | join("{}.tar"); }));
  EXPECT_TRUE(refused([] { return head() | keep_fields("txt") | join("{}.tar"); }));
  EXPECT_TRUE(refused(
      [] { return shards({"pipe:cat a.tar"}) | untar() | group_by_key() | join("{}.tar"); }));
  EXPECT_TRUE(refused([] { return join_table(nullptr); }));
}

TEST_F(Join, Tables) {
  store_->put("m/0.tar", text_shard(0, 4));
  auto table = std::make_shared<field_table>();
  for (const int i : {0, 1, 3}) (*table)[key(i)] = {{"cap", owned_bytes("cap of " + key(i))}};
  const auto with = [&](missing_companion how) {
    return run(head() | join_table(table, how) | on_error(skip_errors()));
  };
  const auto given = with(missing_companion::none);
  EXPECT_EQ(given.told[2], key(2) + ": alone");
  EXPECT_EQ(given.counts.without_companion, 1U);
  EXPECT_TRUE(was_told("the table has no row for " + key(2)));
  const auto skipped = with(missing_companion::skip);
  EXPECT_EQ(skipped.told.size(), 3U);
  EXPECT_EQ(skipped.counts.left_out, 1U);
  const auto failed = with(missing_companion::error);
  EXPECT_EQ(failed.counts.skipped.at(errc::missing_field), 1U);
  EXPECT_SAYS(failed.counts.first_skipped.front(), key(2));
  (*table)[key(0)].push_back({"txt", owned_bytes(std::string("clash"))});
  EXPECT_EQ(with(missing_companion::error).counts.skipped.at(errc::duplicate_field), 1U);
}

TEST_F(Join, NoMoreFieldsThanASampleMayHave) {
  store_->put("m/0.tar", text_shard(0, 1));
  const auto failed_with = [&](int columns, std::size_t name) {
    auto table = std::make_shared<field_table>();
    for (int i = 0; i < columns; ++i) {
      (*table)[key(0)].push_back({fmt::format("{:0{}}", i, name), owned_bytes(std::string("x"))});
    }
    tar_builder companion;
    for (const field& f : (*table)[key(0)]) companion.file(key(0) + "." + f.extension, "x");
    store_->put("c/0.tar", companion.end().str());
    std::vector<errc> out;
    for (const auto& plan : {interleaved(head() | join_table(table)), interleaved(joined())}) {
      try {
        run(plan);
      } catch (const failure& f) {
        out.push_back(f.kind());
      }
    }
    return out;
  };
  using kinds = std::vector<errc>;
  EXPECT_EQ(failed_with(998, 4), kinds{});
  EXPECT_EQ(failed_with(999, 4), (kinds{errc::too_large, errc::too_large}));
  EXPECT_EQ(failed_with(700, 200).front(), errc::too_large);  // names that are too long for a tar
}

// What a function of the program throws is not taken for the end of the companion.
TEST_F(Join, AnErrorThatEndsARunEndsItAlsoWhereTheRestIsRead) {
  put(3, shard_of(range(0, 30)));
  const auto rename = [](std::string_view name) -> std::string {
    if (name.starts_with(key(20))) throw std::logic_error("by the program");
    return std::string(name);
  };
  const std::string why = error_of_run({.untar = {.rename = rename}});
  EXPECT_SAYS(why, "by the program");
}

}  // namespace
}  // namespace millrace
