// Samples larger than a lane's usual memory for samples.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "millrace/millrace.h"
#include "pipeline/formats/tar_samples.h"
#include "tests/support/loaders.h"
#include "tests/support/packed.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::with_memory_store;

class LargeSamples : public ::testing::Test {
 protected:
  LargeSamples() {
    testing::tar_builder tar;
    for (const char* name : {"a", "b", "c"}) {
      tar.file(std::string(name) + ".bin", std::string(20_MiB, *name));
      tar.file(std::string(name) + ".cls", "1");
    }
    store_->put("t", tar.end().str());
  }
  // The sizes of the samples for which a budget has room, or the error.
  result<std::vector<std::size_t>> sizes(std::size_t budget, int lanes) const {
    engine_options o = with_memory_store(store_);
    o.memory_bytes = budget;
    engine eng(o);
    auto data =
        eng.run(interleaved(shards({"memory:t"}, {.lanes = lanes}) | untar() | group_by_key()));
    std::vector<std::size_t> out;
    try {
      for (const sample& s : data) out.push_back(s.find("bin")->data.size());
    } catch (const failure& f) {
      return f.why();
    }
    return out;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(1_MiB);
};

TEST_F(LargeSamples, FitIntoALargeBudgetOrFewLanes) {
  const std::vector<std::size_t> all(3, 20_MiB);
  EXPECT_EQ(sizes(384_MiB, 1).value(), all);
  EXPECT_EQ(sizes(2_GiB, 4).value(), all);
}

// The refusal says how much would suffice.
TEST_F(LargeSamples, AreRefusedWithWhatTheyNeed) {
  const auto refused = sizes(128_MiB, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind(), errc::too_large);
  EXPECT_EQ(refused.error().sample_key(), "a.bin");
  const std::string told = refused.error().message();
  EXPECT_NE(told.find("a field of 20.0 MiB, and the budget leaves 16.0 MiB"), told.npos) << told;
  EXPECT_NE(told.find("MILLRACE_MEMORY"), told.npos);
  const auto second = sizes(256_MiB, 1);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message().find("after 20.0 MiB of samples"), told.npos)
      << second.error().message();
}

// Unpacked data uses the same memory as samples: a sample that leaves no room for it is refused and
// does not wait forever.
class NearlyAsLargeAsTheMemory : public ::testing::Test {
 protected:
  // The reason why a shard of one sample cannot be read.
  std::optional<error> refused(const std::string& shard, std::size_t budget) {
    store_->put("t", shard);
    engine eng(with_memory_store(store_, 1, budget));
    auto data = eng.run(interleaved(shards({"memory:t"}, {.lanes = 1}) | untar() | group_by_key()));
    try {
      EXPECT_EQ(testing::keys_of_epoch(data), std::vector<std::string>{"a"});
    } catch (const failure& f) {
      return f.why();
    }
    return std::nullopt;
  }
  static std::string shard_of(const std::vector<std::size_t>& sizes) {
    testing::tar_builder tar;
    for (const std::size_t size : sizes) {
      tar.file(fmt::format("a.{}", size), std::string(size, 'x'));
    }
    return tar.end().str();
  }

 private:
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(64_KiB);
};

TEST_F(NearlyAsLargeAsTheMemory, SamplesAreReadOrRefused) {
  const testing::watchdog watched("a sample nearly as large as the memory");
  using packing = std::function<std::string(const std::string&)>;
  const std::vector<packing> packings{
      [](const std::string& tar) { return tar; },
      [](const std::string& tar) { return testing::packed(tar, ARCHIVE_FILTER_GZIP); },
      [](const std::string& tar) {  // with a small window
        return testing::packed(tar, ARCHIVE_FILTER_ZSTD, "zstd:compression-level=1");
      }};
  for (std::size_t i = 0; i < packings.size(); ++i) {
    for (const std::size_t second : {0_KiB, 1000_KiB}) {
      int read = 0;
      int too_large = 0;
      for (std::size_t size = 2_MiB; size <= 4_MiB; size += 64_KiB) {
        std::vector<std::size_t> fields{size - second};
        if (second > 0) fields.push_back(second);
        const auto why = refused(packings[i](shard_of(fields)), 4_MiB);
        ++(why ? too_large : read);
        if (why) EXPECT_EQ(why->kind(), errc::too_large) << why->message();
      }
      EXPECT_GT(read, 0) << "packing " << i;
      EXPECT_GT(too_large, 0) << "packing " << i;
    }
  }
}

// The stream within the sample needs more memory than the sample leaves.
TEST_F(NearlyAsLargeAsTheMemory, ADecoderThatNeedsMoreDoesNotWaitForASample) {
  const testing::watchdog watched("a decoder that needs more within a sample");
  const std::string plain = shard_of({7_MiB});
  const std::string shard =
      testing::packed(plain.substr(0, 3_MiB), ARCHIVE_FILTER_ZSTD, "zstd:compression-level=1") +
      testing::packed(plain.substr(3_MiB), ARCHIVE_FILTER_ZSTD, "zstd:compression-level=19");
  const auto why = refused(shard, 12_MiB);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->kind(), errc::too_large) << why->message();
  EXPECT_FALSE(refused(shard, 64_MiB));
}

// Samples held by a shuffle are yielded or refused one by one, by name, in a run with less memory;
// those after them in the shard may be too large as well.
class HeldWithLessMemory : public ::testing::Test {
 protected:
  HeldWithLessMemory() {
    testing::tar_builder tar;
    for (const auto& [key, size] : sizes_) tar.file(key + ".bin", std::string(size, key.front()));
    store_->put("t", tar.end().str());
  }
  // Calls next() up to this many times, or to the end of the data, and notes what is yielded and
  // what is refused.
  void call(loader<sample>& data, int times) {
    for (; times > 0; --times) {
      try {
        const auto next = data.next();
        if (!next) return;
        given_.push_back(next->key);
      } catch (const failure& f) {
        ASSERT_TRUE(f.why().is_skippable()) << f.what();
        EXPECT_EQ(f.kind(), errc::too_large) << f.what();
        const std::string& name = f.why().sample_key();
        refused_.push_back(name.substr(0, name.find('.')));
      }
    }
  }
  loader<sample> run(engine& eng, std::uint64_t seed) const {
    return eng.run(interleaved(shards({"memory:t"}, {.lanes = 1}) | read_samples(tar_samples()) |
                               shuffle({.samples = 4, .seed = seed})));
  }

  const std::vector<std::pair<std::string, std::size_t>> sizes_{
      {"a", 10_KiB}, {"b", 7_MiB}, {"c", 8_MiB}, {"d", 4_MiB}, {"e", 10_KiB}, {"f", 9_MiB}};
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(64_KiB);
  std::vector<std::string> given_;
  std::vector<std::string> refused_;
};

TEST_F(HeldWithLessMemory, SamplesAreGivenOrRefusedByTheirOwnNames) {
  const testing::watchdog watched("a run that has less memory than the one before");
  engine large(with_memory_store(store_, 1, 256_MiB));
  engine small(with_memory_store(store_, 1, 8_MiB));
  std::vector<std::string> all;
  for (const auto& [key, size] : sizes_) all.push_back(key);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (int calls = 0; calls <= std::ssize(sizes_); ++calls) {
      given_.clear();
      refused_.clear();
      auto first = run(large, seed);
      call(first, calls);
      EXPECT_TRUE(refused_.empty());
      auto second = run(small, seed);
      second.restore(first.save());
      call(second, 100);
      std::vector<std::string> told(given_);
      told.insert(told.end(), refused_.begin(), refused_.end());
      std::ranges::sort(told);
      EXPECT_EQ(told, all) << fmt::format("seed {}, cut after {}, given {}, refused {}", seed,
                                          calls, fmt::join(given_, " "), fmt::join(refused_, " "));
    }
  }
}

// A refused sample is read whole with more memory, or not at all: a state is at the beginning of a
// sample, also if two samples that are too large follow each other, with damage in between.
class RefusedWithLessMemory : public ::testing::TestWithParam<bool> {
 protected:
  // As `key extension...` or `!key`, at most `most` of them.
  std::vector<std::string> items(loader<sample>& data, int most) {
    std::vector<std::string> out;
    for (; most > 0; --most) {
      try {
        const auto next = data.next();
        if (!next) break;
        out.push_back(next->key);
        for (const field& f : next->fields) out.back() += " " + f.extension;
      } catch (const failure& f) {
        if (!f.why().is_skippable()) throw;
        out.push_back("!" + f.why().sample_key().substr(0, 1));
      }
    }
    return out;
  }
  loader<sample> run(engine& eng) const {
    return eng.run(interleaved(shards({"memory:t"}, {.lanes = 1, .epochs = 1}) |
                               untar({.resync = true}) | group_by_key()));
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(64_KiB);
};

TEST_P(RefusedWithLessMemory, SamplesAreReadWhole) {
  testing::tar_builder tar;
  tar.file("a.txt", "a").file("b.cls", "7").file("b.jpg", std::string(9_MiB, 'b'));
  if (GetParam()) tar.raw(std::string(1024, 'x'));
  tar.file("c.jpg", std::string(9_MiB, 'c')).file("c.cls", "7").file("d.txt", "d");
  store_->put("t", tar.end().str());
  engine large(with_memory_store(store_, 1, 256_MiB));
  engine small(with_memory_store(store_, 1, 8_MiB));
  auto whole = run(large);
  const auto all = items(whole, 100);
  ASSERT_GE(all.size(), 4U);
  for (int cut = 0; cut < 6; ++cut) {
    auto first = run(small);
    const auto before = items(first, cut);
    auto second = run(large);
    second.restore(first.save());
    const auto behind = items(second, 100);
    ASSERT_LE(behind.size(), all.size());
    const std::vector<std::string> rest(all.end() - std::ssize(behind), all.end());
    EXPECT_EQ(behind, rest) << "after " << fmt::format("{}", fmt::join(before, ", "));
  }
}
INSTANTIATE_TEST_SUITE_P(WithDamageBetween, RefusedWithLessMemory, ::testing::Bool());

}  // namespace
}  // namespace millrace
