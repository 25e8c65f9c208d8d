// An index and its offsets are files, perhaps a stranger's, so each of their numbers may be
// anything, and the checksums right all the same. Whatever they say, they are refused, or an epoch
// has some of the shards' samples, none of them twice, and ends.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "millrace/millrace.h"
#include "pipeline/wids/sidecar.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

constexpr int shard_count = 3;
constexpr int samples_of_each = 6;

class ForgedIndex : public ::testing::Test {
 protected:
  ForgedIndex() {
    std::vector<std::string> urls;
    for (int i = 0; i < shard_count; ++i) {
      store_->put(fmt::format("t{}", i), testing::text_shard(i * 100, samples_of_each, 700));
      urls.push_back(fmt::format("memory:t{}", i));
      for (int k = 0; k < samples_of_each; ++k) keys_.insert(fmt::format("s{:06}", i * 100 + k));
    }
    right_ = testing::index_of(eng_, urls);
  }

  // What a program has of these files; nullopt if they are refused.
  std::optional<shard_index> read(const shard_index& forged) {
    auto list = nlohmann::json::array();
    for (const auto& s : forged.shards) {
      list.push_back({{"url", s.url}, {"nsamples", s.samples}, {"filesize", s.bytes}});
    }
    const auto none = [](const std::string&) -> result<std::string> {
      return error(errc::not_found, "none");
    };
    auto index = parse_index(nlohmann::json{{"wids_version", 1}, {"shardlist", list}}.dump(),
                             "i.json", "", none);
    if (!index) return refused(index.error());
    if (auto added = add_offsets(*index, offsets_text(forged), "i.offsets"); !added) {
      return refused(added.error());
    }
    return *std::move(index);
  }

  // Uses what is read of these files.
  void use(const shard_index& forged) {
    const auto index = read(forged);
    if (!index) return;
    for (const epoch_mode mode : {epoch_mode::equal, epoch_mode::exact}) {
      const shard_list_options how{.lanes = 2, .mode = mode};
      epoch_of(interleaved(indexed_shards(*index, how) | untar() | group_by_key()));
      epoch_of(interleaved(indexed_shards(*index, how) | window_shuffle({.samples = 8})));
    }
    const shard_list_options of_rank{
        .rank = 1, .world_size = 2, .lanes = 2, .mode = epoch_mode::exact};
    epoch_of(interleaved(indexed_shards(*index, of_rank) | untar() | group_by_key()));
    look_up(*index);
  }

  // Calls f(number) for each number of the files, with `forged`, of which it is a part.
  template <class F>
  void each_number(F f) {
    for (std::size_t i = 0; i < right_.shards.size(); ++i) {
      shard_index forged = right_;
      shard_index::shard& s = forged.shards[i];
      f(forged, s.samples, fmt::format("samples of {}", i));
      f(forged, s.bytes, fmt::format("bytes of {}", i));
      for (std::size_t k = 0; k < s.blocks.size(); ++k) {
        f(forged, s.blocks[k], fmt::format("block {} of {}", k, i));
      }
      for (std::size_t k = 0; k < s.names.size(); ++k) {
        f(forged, s.names[k], fmt::format("name {} of {}", k, i));
      }
    }
  }

  shard_index right_;
  int refused_ = 0;
  int harmless_ = 0;

 private:
  std::nullopt_t refused(const error& why) {
    ++refused_;
    EXPECT_TRUE(why.kind() != errc::uncaught && why.kind() != errc::internal) << why.message();
    return std::nullopt;
  }

  template <class P>
  void epoch_of(const P& p) {
    testing::bounded("an epoch by a forged index", [&] {
      try {
        auto data = eng_.run(p);
        std::set<std::string> seen;
        while (auto s = data.next()) {
          EXPECT_TRUE(keys_.contains(s->key)) << s->key;
          EXPECT_TRUE(seen.insert(s->key).second) << "twice: " << s->key;
        }
        ++harmless_;
      } catch (const failure& f) {
        refused(f.why());
      }
    });
  }

  void look_up(const shard_index& index) {
    testing::bounded("samples by a forged index", [&] {
      try {
        indexed_dataset samples(eng_, index);
        for (const std::int64_t i : {std::int64_t{0}, samples.size() / 2, samples.size() - 1}) {
          EXPECT_TRUE(keys_.contains(samples.get(i).key));
        }
        ++harmless_;
      } catch (const failure& f) {
        refused(f.why());
      }
    });
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  engine eng_{testing::with_memory_store(store_)};
  std::set<std::string> keys_;
};

TEST_F(ForgedIndex, ByOneNumber) {
  std::uint64_t place = 0;
  each_number([&](const shard_index& forged, auto& number, const std::string& what) {
    using kind = std::remove_reference_t<decltype(number)>;
    constexpr kind least = std::numeric_limits<kind>::min();
    constexpr kind most = std::numeric_limits<kind>::max();
    const kind was = number;
    for (const kind n : {least, kind{0}, kind{1}, static_cast<kind>(was - 1),
                         static_cast<kind>(was + 1), static_cast<kind>(most / 2), most}) {
      if (n == was || !testing::is_taken(place++)) continue;
      SCOPED_TRACE(fmt::format("{} is {}", what, n));
      number = n;
      use(forged);
    }
    number = was;
  });
  EXPECT_GT(refused_, 50 / static_cast<int>(testing::every()));
  EXPECT_GT(harmless_, 0);
}

TEST_F(ForgedIndex, ByTheOrderAndTheNumberOfEntries) {
  use(right_);
  EXPECT_EQ(refused_, 0);
  shard_index forged = right_;
  std::swap(forged.shards[0].blocks, forged.shards[2].blocks);
  std::swap(forged.shards[0].names, forged.shards[2].names);
  use(forged);
  forged = right_;
  forged.shards.push_back(forged.shards[0]);
  EXPECT_NO_THROW(read(forged));
  for (const std::size_t kept : {0U, 1U, 4U}) {
    forged = right_;
    shard_index::shard& s = forged.shards[1];
    s.samples = static_cast<std::int64_t>(kept);
    s.blocks.resize(kept + 1);
    s.names.resize(kept);
    use(forged);
  }
  forged = right_;
  for (shard_index::shard& s : forged.shards) std::ranges::reverse(s.blocks);
  use(forged);
  EXPECT_GT(harmless_, 0);
}

}  // namespace
}  // namespace millrace
