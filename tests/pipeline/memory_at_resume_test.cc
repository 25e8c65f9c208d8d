// Runs resumed while samples nearly fill the memory of their lane: shards of every kind in one
// list, with a shuffle, with as much memory as before, with less, and with more.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/packed.h"
#include "tests/support/record_format.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::with_memory_store;

// What a loader yielded or refused, by key, in order.
struct told_item {
  std::string key;
  bool is_given = false;
  bool operator==(const told_item&) const = default;
};

std::string text_of(const std::vector<told_item>& all) {
  std::string out;
  for (const told_item& t : all) out += fmt::format(" {}{}", t.is_given ? "" : "!", t.key);
  return out;
}

// A handwritten shard: the samples in order, with the sizes of their fields in KiB.
struct given_shard {
  std::string name;  // .gz, .zst: compressed that way, with a window as large as the content
  std::vector<std::pair<std::string, std::vector<std::size_t>>> samples;
};

class resumed_case {
 public:
  resumed_case(const std::vector<given_shard>& list, std::size_t held, std::uint64_t seed)
      : random_(seed), seed_(seed), lists_(1), held_(held), is_in_order_(true) {
    for (const given_shard& s : list) {
      testing::tar_builder tar;
      for (const auto& [key, kib] : s.samples) add_sample(tar, key, kib);
      lists_.front().push_back(put(s.name, packed_as(s.name, tar.end().str(), 19)));
    }
  }
  // A random case.
  explicit resumed_case(std::uint64_t seed) : random_(seed), seed_(seed) {
    const int lists = chance(4) ? 2 : 1;
    for (int l = 0; l < lists; ++l) {
      auto& urls = lists_.emplace_back();
      for (int shards = pick(2, 3); shards > 0; --shards) urls.push_back(put_shard());
    }
    lanes_ = chance(5) ? 2 : 1;
    held_ = static_cast<std::size_t>(pick(2, 6));
    is_shuffled_by_source_ = lists > 1 && chance(2);
    budget_ = draw_budget();
  }

  // Runs the plan with memory for `kib`, from `saved` on if there is a state. Returns what came, at
  // most `most` items, and saves. nullopt if the plan needs more memory than that.
  std::optional<std::vector<told_item>> run(std::size_t kib, std::optional<state>& saved,
                                            int most) {
    std::vector<told_item> out;
    was_ended_ = false;
    try {
      engine eng(with_memory_store(store_, 2, kib << 10));
      auto data = eng.run(plan_of());
      if (saved) data.restore(*saved);
      for (; most > 0; --most) {
        auto one = next(data);
        if (!one) break;
        out.push_back(std::move(*one));
      }
      saved = data.save();
    } catch (const failure& f) {
      if (f.kind() == errc::no_memory) return std::nullopt;
      throw;
    }
    return out;
  }

  // With the least memory that the plan accepts.
  std::vector<told_item> run_whole() {
    for (;; budget_ += 4'096) {
      std::optional<state> saved;
      if (auto all = run(budget_, saved, 1000); all && !was_ended_) return *all;
    }
  }

  std::string name(std::size_t kib, std::size_t then, int cut) const {
    std::string out =
        fmt::format("seed {}: {} KiB, {} items, then {} KiB; {} lanes, shuffle {}{}:", seed_, kib,
                    cut, then, lanes_, held_, is_shuffled_by_source_ ? " of each source" : "");
    for (const auto& [key, sizes] : samples_)
      out += fmt::format(" {}={}", key, fmt::join(sizes, "+"));
    return out;
  }

  // Each sample was yielded whole and once, or refused: by name or, if its shard could not be
  // unpacked that far, by its place.
  void check(const std::vector<told_item>& all) const {
    auto nameless = std::ranges::count(all, told_item{"", false});
    for (const auto& [key, sizes] : samples_) {
      const auto given = std::ranges::count(all, told_item{key, true});
      const bool is_refused = std::ranges::count(all, told_item{key, false}) > 0;
      const bool is_told = given == 1 || (given == 0 && (is_refused || nameless-- > 0));
      EXPECT_TRUE(is_told) << key << " was given " << given << " times:" << text_of(all);
    }
  }

  std::size_t draw_budget() {
    return static_cast<std::size_t>(chance(6) ? pick(100'000, 400'000) : pick(9'000, 36'000));
  }
  // Whether the last run ended with an unskippable error.
  bool was_ended() const { return was_ended_; }
  std::size_t budget() const { return budget_; }
  int count() const { return static_cast<int>(samples_.size()); }

 private:
  int pick(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  bool chance(int of) { return pick(1, of) == 1; }

  void add_field(testing::tar_builder& tar, const std::string& key, std::size_t bytes) {
    auto& sizes = samples_[key];
    sizes.push_back(bytes);
    tar.file(fmt::format("{}.{}", key, sizes.size()), std::string(bytes, key.front()));
  }
  void add_sample(testing::tar_builder& tar, const std::string& key,
                  const std::vector<std::size_t>& kib) {
    for (const std::size_t k : kib) add_field(tar, key, k << 10);
  }
  static std::string packed_as(const std::string& name, const std::string& shard, int level) {
    if (name.ends_with(".gz")) return testing::packed(shard, ARCHIVE_FILTER_GZIP);
    if (!name.ends_with(".zst")) return shard;
    return testing::packed(shard, ARCHIVE_FILTER_ZSTD,
                           fmt::format("zstd:compression-level={}", level));
  }

  std::string put_shard() {
    testing::tar_builder tar;
    const auto number = shards_++;
    for (int i = pick(1, 4); i > 0; --i) {
      const std::string key = fmt::format("{}{}", static_cast<char>('a' + number), i);
      for (int fields = chance(3) ? 2 : 1; fields > 0; --fields) {
        const int kib = pick(1'500, chance(4) ? 13'000 : 6'000);
        add_field(tar, key, static_cast<std::size_t>(chance(4) ? pick(0, 3'000) : kib << 10));
      }
    }
    const std::string shard = tar.end().str();
    const std::string plain = fmt::format("{}.tar", number);
    const int kind = pick(0, 4);
    // With or without a name that shows the compression.
    if (kind == 0) return put(plain, packed_as(".gz", shard, 0));
    const std::string name = plain + (kind == 1 ? ".gz" : kind == 2 ? ".zst" : "");
    return put(name, packed_as(name, shard, pick(1, 19)));
  }
  std::string put(const std::string& name, const std::string& content) {
    store_->put(name, content);
    return "memory:" + name;
  }

  plan<sample> plan_of() const {
    const shuffle_options shuffled{.samples = held_, .seed = seed_};
    const auto one = [&](const std::vector<std::string>& urls) {
      auto samples =
          shards(urls, {.seed = seed_, .lanes = lanes_, .epochs = 1}) | untar() | group_by_key();
      return is_shuffled_by_source_ ? std::move(samples) | shuffle(shuffled) : samples;
    };
    if (lists_.size() == 1) return interleaved(one(lists_.front()) | shuffle(shuffled));
    auto mixed = mix({{one(lists_.front()), 1.0}, {one(lists_.back()), 2.0}}, {.seed = seed_});
    return interleaved(is_shuffled_by_source_ ? mixed : std::move(mixed) | shuffle(shuffled));
  }

  std::optional<told_item> next(loader<sample>& data) {
    try {
      const auto one = data.next();
      if (!one) return std::nullopt;
      check_content(*one);
      return told_item{one->key, true};
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::too_large) << f.what();
      if (!f.why().is_skippable()) {
        was_ended_ = f.why().message().find("no sample") == std::string::npos;
        return std::nullopt;
      }
      const std::string& name = f.why().sample_key();
      return told_item{name.substr(0, name.find('.')), false};
    }
  }
  void check_content(const sample& s) const {
    std::vector<std::size_t> sizes;
    for (const field& f : s.fields) {
      const std::string_view text = f.data.text();
      sizes.push_back(text.size());
      EXPECT_EQ(text.find_first_not_of(s.key.front()), text.npos) << s.key << "." << f.extension;
    }
    EXPECT_EQ(sizes, samples_.at(s.key)) << s.key;
  }

  std::mt19937_64 random_;
  std::uint64_t seed_;
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(64_KiB);
  int shards_ = 0;
  std::vector<std::vector<std::string>> lists_;
  std::map<std::string, std::vector<std::size_t>> samples_;  // the sizes of their fields
  int lanes_ = 1;
  std::size_t held_ = 0;
  bool is_in_order_ = false;
  bool is_shuffled_by_source_ = false;
  std::size_t budget_ = 0;  // KiB
  bool was_ended_ = false;
};

// Resumes after each item.
void check_resumes(resumed_case& drawn, const std::vector<told_item>& all) {
  // Whether a sample is refused depends on the one before it, which another run may not read.
  const bool is_exact = std::ranges::all_of(all, &told_item::is_given);
  std::uint64_t place = 0;
  for (int cut = 0; cut <= std::ssize(all); ++cut) {
    for (const std::size_t then : {drawn.budget(), drawn.draw_budget()}) {
      if (!testing::is_taken(place++)) continue;
      const std::string name = drawn.name(drawn.budget(), then, cut);
      const testing::watchdog watched(name);
      SCOPED_TRACE(name);
      std::optional<state> saved;
      auto before = drawn.run(drawn.budget(), saved, cut);
      ASSERT_TRUE(before);
      auto behind = drawn.run(then, saved, 1000);
      if (!behind) continue;    // too little memory for the plan
      if (drawn.was_ended()) {  // a window too large for a run with so little memory
        std::optional<state> at_end;
        drawn.run(then, at_end, 1000);
        EXPECT_TRUE(drawn.was_ended());
        continue;
      }
      // The last refused item comes again: the state is from before it.
      if (!before->empty() && !before->back().is_given) before->pop_back();
      before->insert(before->end(), behind->begin(), behind->end());
      drawn.check(*before);
      if (then == drawn.budget() && is_exact) EXPECT_EQ(text_of(*before), text_of(all));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(MemoryAtResume, NoSampleIsLostAndNoneIsWaitedForForEver) {
  for (const std::uint64_t seed : testing::seeds(6)) {
    resumed_case drawn(seed);
    const auto all = drawn.run_whole();
    drawn.check(all);
    check_resumes(drawn, all);
    if (HasFailure()) break;
  }
}

// Cases that once hung, or ended a run, near the limit.
TEST(MemoryAtResume, WhatHasHung) {
  struct seen {
    std::vector<given_shard> list;
    std::size_t held;
    std::size_t before;  // KiB
    std::size_t then;
  };
  const std::vector<seen> all{
      // The piece of the open compressed shard is counted in no share.
      {{{"p.tar", {{"a", {1}}, {"b", {1}}, {"p", {4'500}}}},
        {"z.tar.gz", {{"z", {4'500}}, {"y", {1'500}}}}},
       3,
       16'000,
       16'000},
      // The beginning of the next sample is in the shuffle's memory, which the sample needs.
      {{{"p.tar", {{"a", {1}}, {"b", {1}}, {"p", {3'900}}, {"q", {13'000, 13'000}}}},
        {"z.tar", {{"z", {1}}}}},
       4,
       400'000,
       44'000},
      // There is no window for the compressed sample aside, in addition to that of the open shard.
      {{{"p.tar", {{"a", {1}}, {"b", {1}}, {"p", {6'000}}}},
        {"z.tar.zst", {{"z", {6'000}}, {"y", {1}}}}},
       3,
       200'000,
       13'000},
  };
  std::uint64_t place = 0;
  for (const seen& s : all) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      resumed_case given(s.list, s.held, seed);
      for (int cut = 0; cut <= given.count(); ++cut) {
        if (!testing::is_taken(place++)) continue;
        const std::string name = given.name(s.before, s.then, cut);
        const testing::watchdog watched(name);
        SCOPED_TRACE(name);
        std::optional<state> saved;
        auto told = given.run(s.before, saved, cut).value();
        const auto behind = given.run(s.then, saved, 1000).value();
        EXPECT_FALSE(given.was_ended());
        told.insert(told.end(), behind.begin(), behind.end());
        given.check(told);
      }
    }
  }
}

// A user-defined format allocates its memory as docs/formats.md says, and is never unpacked,
// whatever its files are named.
TEST(MemoryAtResume, FormatsOfOnesOwn) {
  const testing::watchdog watched("a format of one's own, at resumes");
  const auto store = std::make_shared<memory_store>(64_KiB);
  const auto records = [](const std::string& key, std::size_t size) {
    return testing::record_file({key}, size);
  };
  const std::string small = records("a", 1) + records("b", 1) + records("c", 11'000_KiB);
  const std::string large = records("d", 11'000_KiB) + records("e", 1);
  for (const char* const name : {"z.rec", "z.rec.gz"}) {
    store->put("p.rec", small);
    store->put(name, large);
    engine eng(with_memory_store(store, 2, 40'000_KiB));
    const auto samples = interleaved(shards({"memory:p.rec", std::string("memory:") + name},
                                            {.lanes = 1, .shuffle = false, .epochs = 1}) |
                                     read_samples(std::make_shared<testing::record_source>()) |
                                     shuffle({.samples = 3}));
    testing::expect_resumable(eng, samples, testing::key_of, 1);
  }
}

}  // namespace
}  // namespace millrace
