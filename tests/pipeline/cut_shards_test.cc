// Shards cut at any byte: each cut is an error, or loses nothing. What is read of a cut shard is
// whole samples, the first ones of the whole shard.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "engine/base/random.h"
#include "io/names/compression.h"
#include "io/unpack/decoders.h"
#include "millrace/millrace.h"
#include "pipeline/formats/scan.h"
#include "tests/support/packed.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using testing::tar_builder;
using testing::with_memory_store;

constexpr std::size_t block = 512;

struct reading {
  std::vector<std::string> samples;  // key and content of every field
  std::optional<errc> failed;
};

std::string described(const sample& s) {
  std::string out = s.key;
  for (const field& f : s.fields) out += fmt::format("\n{}:{}", f.extension, f.data.text());
  return out;
}

class CutShards : public ::testing::Test {
 protected:
  reading read(const std::vector<std::string>& urls, const untar_options& how = {}) {
    reading out;
    auto data =
        engine_.run(shards(urls, {.lanes = 1, .shuffle = false}) | untar(how) | group_by_key());
    return read_all(std::move(data), out);
  }
  reading read(const std::string& archive, const untar_options& how = {}) {
    store_->put("cut", archive);
    return read(std::vector<std::string>{"memory:cut"}, how);
  }
  reading read_indexed(const std::string& archive, const shard_index& index) {
    store_->put("cut", archive);
    reading out;
    auto data = engine_.run(indexed_shards(index, {.lanes = 1, .shuffle = false}) | untar() |
                            group_by_key());
    return read_all(std::move(data), out);
  }
  // Continues after skippable errors; keeps the first one.
  static reading read_all(loader<sample> data, reading& out) {
    for (;;) {
      try {
        const auto s = data.next();
        if (!s) return out;
        out.samples.push_back(described(*s));
      } catch (const failure& f) {
        if (!out.failed) out.failed = f.kind();
        if (!f.why().is_skippable()) return out;
      }
    }
  }

  // Either everything was read, or an error follows whole samples.
  void expect_told(const reading& all, const std::string& cut, const std::string& what) {
    for (const bool resync : {false, true}) {
      const reading got = read(cut, {.resync = resync});
      if (!got.failed) {
        EXPECT_EQ(got.samples, all.samples) << what;
        continue;
      }
      ASSERT_LE(got.samples.size(), all.samples.size()) << what;
      const std::vector first(all.samples.begin(), all.samples.begin() + std::ssize(got.samples));
      EXPECT_EQ(got.samples, first) << what;
    }
  }

  static std::string members() {
    tar_builder t;
    for (int i = 0; i < 4; ++i) {
      t.file(fmt::format("s{}.txt", i), std::string(static_cast<std::size_t>(100 + 300 * i), 'x'))
          .file(fmt::format("s{}.cls", i), std::to_string(i));
    }
    return t.str();
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(700);
  engine engine_{with_memory_store(store_, 1, 64_MiB)};
};

TEST_F(CutShards, BetweenMembersTheEndBlocksTell) {
  const std::string cut = members();
  const std::string whole = cut + std::string(1024, '\0');
  const reading all = read(whole);
  ASSERT_EQ(all.samples.size(), 4U);
  EXPECT_FALSE(all.failed);
  EXPECT_FALSE(read(cut + std::string(block, '\0')).failed);
  // Whether the last sample is whole is unknown.
  const reading strict = read(cut);
  EXPECT_EQ(strict.failed, errc::truncated);
  EXPECT_EQ(strict.samples, std::vector(all.samples.begin(), all.samples.end() - 1));
  const reading lenient = read(cut, {.end_blocks = end_blocks::optional});
  EXPECT_FALSE(lenient.failed);
  EXPECT_EQ(lenient.samples, all.samples);
  // A scan (used by verify and index create) is strict.
  auto scanned = engine_.run(scan({"memory:cut"}));
  const auto facts = *scanned.next();
  ASSERT_EQ(facts.problems.size(), 1U);
  EXPECT_EQ(facts.problems.front().kind(), errc::truncated);
  EXPECT_EQ(facts.samples.size(), 3U);
}

TEST_F(CutShards, TheLengthInTheIndexTellsAsWell) {
  const std::string cut = members();
  const auto index_of = [](std::size_t bytes, std::int64_t samples) {
    shard_index index;
    index.shards.push_back({.url = "memory:cut",
                            .samples = samples,
                            .bytes = static_cast<std::int64_t>(bytes),
                            .md5 = "",
                            .dataset = "",
                            .blocks = {}});
    return index;
  };
  const reading known = read_indexed(cut, index_of(cut.size(), 4));
  EXPECT_FALSE(known.failed);
  EXPECT_EQ(known.samples.size(), 4U);
  EXPECT_EQ(read_indexed(cut, index_of(cut.size() + 1024, 4)).failed, errc::truncated);
  const std::string whole = cut + std::string(1024, '\0');
  EXPECT_FALSE(read_indexed(whole, index_of(whole.size(), 4)).failed);
  // A stretch missing between two members leaves a valid archive of another length.
  std::string shorter = whole;
  shorter.erase(0, 4 * block);
  const reading missing = read_indexed(shorter, index_of(whole.size(), 4));
  EXPECT_EQ(missing.samples.size(), 3U);
  EXPECT_EQ(missing.failed, errc::integrity);
}

// Reads by the offsets of an index: parts of shards, and single samples.
TEST_F(CutShards, PartsEndWhereTheIndexSays) {
  const std::string whole = members() + std::string(1024, '\0');
  store_->put("cut", whole);
  const shard_index index = testing::index_of(engine_, {"memory:cut"});
  const auto blocks = index.shards.front().blocks;
  for (std::size_t size = 0; size < whole.size(); size += block) {
    store_->put("cut", whole.substr(0, size));
    for (const bool windows : {false, true}) {
      reading got;
      for (int rank = 0; rank < 2; ++rank) {
        const shard_list_options o{
            .rank = rank, .world_size = 2, .lanes = 2, .mode = epoch_mode::equal, .shuffle = false};
        const auto head = indexed_shards(index, o);
        reading one;
        one = read_all(windows ? engine_.run(head | window_shuffle({.samples = 1}))
                               : engine_.run(head | untar() | group_by_key()),
                       one);
        got.samples.insert(got.samples.end(), one.samples.begin(), one.samples.end());
        if (one.failed) got.failed = one.failed;
      }
      // Only data after the last sample may be missing without an error.
      EXPECT_EQ(got.failed.has_value(), size < blocks.back() * block) << size << windows;
      for (const std::string& s : got.samples) EXPECT_NE(s.find("\ncls:"), s.npos) << size;
    }
  }
}

// Cut at the beginning and end of each block, and at random: strictly, and with resync.
TEST_F(CutShards, EveryCutOfAPlainArchiveIsAnErrorOrHarmless) {
  tar_builder t;
  t.raw(members())
      .extension('x', tar_builder::pax_record("path", "a/" + std::string(300, 'n') + ".txt"))
      .file("short", "by a pax name")
      .extension('L', "a/" + std::string(200, 'g') + ".txt")
      .file("short", "by a GNU name");
  const std::string whole = t.end().str();
  const reading all = read(whole);
  ASSERT_EQ(all.samples.size(), 6U);
  std::set<std::size_t> cuts;
  for (std::size_t at = 0; at < whole.size(); at += block) {
    for (const std::size_t near : {0U, 1U, 2U, 100U, 511U}) cuts.insert(at + near);
  }
  random_stream random(1, purpose::fake_data);
  for (int i = 0; i < 300; ++i) {
    cuts.insert(random.below(static_cast<std::uint32_t>(whole.size())));
  }
  for (const std::size_t cut : cuts) expect_told(all, whole.substr(0, cut), fmt::format("{}", cut));
}

// The state is from before the error, so the same error comes after a resume.
TEST_F(CutShards, TheErrorIsTheSameAfterAResume) {
  // A member that belongs to no sample, without a sample before it.
  const std::string other = tar_builder().file("README", "of no sample").str();
  const std::string end(1024, '\0');
  const std::string whole = other + members() + end + other + members() + end;
  const auto plan_of = [](const untar_options& how) {
    return shards({"memory:cut"}, {.lanes = 1, .shuffle = false}) | untar(how) | group_by_key();
  };
  const auto error_of = [](loader<sample>& data) {
    try {
      while (data.next()) continue;
    } catch (const failure& f) {
      return std::string(f.what());
    }
    return std::string();
  };
  for (std::size_t cut = 1; cut < whole.size(); cut += cut % block == 1 ? 97 : 83) {
    if (!testing::is_taken(cut)) continue;
    store_->put("cut", whole.substr(0, cut));
    for (const auto ends : {end_blocks::required, end_blocks::optional}) {
      const auto p = plan_of({.end_blocks = ends});
      auto first = engine_.run(p);
      const std::string told = error_of(first);
      auto second = engine_.run(p);
      second.restore(state::from_json(first.save().to_json()).value());
      EXPECT_EQ(error_of(second), told) << cut;
    }
  }
}

// A connection cut after its first byte, or a command, delivers very little at first.
TEST_F(CutShards, ACompressionIsToldHoweverLittleComesAtATime) {
  const std::string plain = members() + std::string(1024, '\0');
  const reading all = read(plain);
  for (const std::size_t piece : {1U, 2U, 3U, 5U, 6U, 7U}) {
    store_ = std::make_shared<memory_store>(piece);
    engine small(with_memory_store(store_, 1, 64_MiB));
    for (const known_compression& known : known_compressions) {
      const std::string whole = testing::packed(plain, decoder_of(known.how).filter);
      if (whole.empty()) continue;  // this libarchive cannot write it
      store_->put("shard", whole);
      const auto plan =
          shards({"memory:shard"}, {.lanes = 1, .shuffle = false}) | untar() | group_by_key();
      reading got;
      EXPECT_EQ(read_all(small.run(plan), got).samples, all.samples)
          << known.ending << ", " << piece;
      testing::expect_resumable(small, plan, described, 1);
      auto scanned = small.run(scan({"memory:shard"}));
      EXPECT_EQ(scanned.next()->problems.size(), 0U) << known.ending << ", " << piece;
    }
  }
}

// A compressed stream is cut if its end is missing, whatever was unpacked.
TEST_F(CutShards, EveryCutOfACompressedArchiveIsAnErrorOrHarmless) {
  const std::string plain = members() + std::string(1024, '\0');
  const reading all = read(plain);
  for (const known_compression& known : known_compressions) {
    const std::string whole = testing::packed(plain, decoder_of(known.how).filter);
    if (whole.empty()) continue;
    EXPECT_EQ(read(whole).samples, all.samples) << known.ending;
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
      expect_told(all, whole.substr(0, cut),
                  fmt::format("{} {} of {}", known.ending, cut, whole.size()));
    }
  }
}

// Without end blocks, if that is allowed, the last sample of an archive is whole, whatever comes
// next.
TEST_F(CutShards, TheLastSampleIsGivenBeforeTheNextShardFails) {
  store_->put("cut", members());
  const reading got = read(std::vector<std::string>{"memory:cut", "memory:nowhere"},
                           {.end_blocks = end_blocks::optional});
  EXPECT_EQ(got.samples.size(), 4U);
  EXPECT_EQ(got.failed, errc::not_found);
}

}  // namespace
}  // namespace millrace
