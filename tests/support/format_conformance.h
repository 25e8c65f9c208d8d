#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/formats/sample_source.h"
#include "pipeline/state/merged.h"
#include "tests/support/loaders.h"

namespace millrace::testing {

// The requirements on every format (docs/formats.md), tested on one: `urls` are its shards, in
// memory or in files, and `format` reads them with `eng`. Covers parts of shards by places and by
// numbers of samples, equal epochs, and epochs that are resumed with other numbers of ranks and
// lanes.
class format_conformance {
 public:
  format_conformance(engine& eng, std::vector<std::string> urls,
                     std::shared_ptr<const sample_source> format)
      : eng_(eng), urls_(std::move(urls)), format_(std::move(format)) {}

  void check() {
    read_whole();
    ASSERT_GT(all_.size(), 12U) << "too few samples to try anything with";
    parts_by_place();
    parts_by_number();
    stopped_anywhere();
    equal_epochs();
    for (const std::vector<int>& worlds :
         {std::vector{1, 2, 3, 1}, std::vector{2, 5, 5, 2, 3, 5}, std::vector{4, 1}}) {
      other_worlds(worlds);
    }
  }

 private:
  struct found {
    std::string key;
    std::int64_t offset;
  };

  // The samples of these parts, read one after the other.
  std::vector<found> samples_of(std::vector<shard_ref> parts) {
    const auto list = std::make_shared<const std::vector<shard_ref>>(std::move(parts));
    const lane_stage<shard_ref, sample> stage{
        .name = "parts",
        .wrap =
            [list, format = format_](lane_context& lane, auto /*shards*/) {
              return std::make_unique<parts_stream>(lane, *list, format);
            },
        .unchanged = true};
    auto data = eng_.run(shards(urls_, {.lanes = 1, .shuffle = false}) | stage);
    std::vector<found> out;
    try {
      for (const sample& s : data) {
        EXPECT_TRUE(s.url) << s.key;
        out.push_back({s.key, s.where.offset});
      }
    } catch (const failure& f) {
      // An empty part, or one that should have more samples than there are.
      EXPECT_TRUE(f.kind() == errc::no_samples || f.kind() == errc::integrity) << f.what();
    }
    return out;
  }

  class parts_stream final : public stream<sample> {
   public:
    parts_stream(lane_context& lane, std::vector<shard_ref> parts,
                 std::shared_ptr<const sample_source> format)
        : lane_(lane), parts_(std::move(parts)), format_(std::move(format)) {}
    awaitable<outcome> next() override {
      for (;;) {
        if (!reader_ && at_ == parts_.size()) co_return std::optional<sample>();
        if (!reader_) reader_ = open_within(*format_, lane_, parts_[at_++], {});
        auto one = co_await reader_->next();
        if (!one || *one) co_return one;
        reader_.reset();
      }
    }
    void save(state& /*to*/) const override {}
    void restore(const state& /*from*/) override {}

   private:
    lane_context& lane_;
    std::vector<shard_ref> parts_;
    std::shared_ptr<const sample_source> format_;
    std::size_t at_ = 0;
    std::unique_ptr<sample_reader> reader_;
  };

  static std::vector<std::string> keys(const std::vector<found>& samples) {
    std::vector<std::string> out;
    out.reserve(samples.size());
    for (const found& f : samples) out.push_back(f.key);
    return out;
  }

  void read_whole() {
    for (std::size_t s = 0; s < urls_.size(); ++s) {
      by_shard_.push_back(samples_of({{.shard = static_cast<std::int64_t>(s)}}));
      for (const found& f : by_shard_.back()) all_.push_back(f.key);
    }
    std::ranges::sort(all_);
    EXPECT_EQ(std::ranges::adjacent_find(all_), all_.end()) << "keys must differ";
  }

  // [begin, end) contains the samples that begin there.
  void parts_by_place() {
    for (std::size_t s = 0; s < by_shard_.size(); ++s) {
      const auto& whole = by_shard_[s];
      for (std::size_t from = 0; from < whole.size(); ++from) {
        for (std::size_t to = from + 1; to < whole.size(); ++to) {
          const auto got = samples_of({{.shard = static_cast<std::int64_t>(s),
                                        .begin = whole[from].offset,
                                        .end = whole[to].offset}});
          const auto at = whole.begin();
          EXPECT_EQ(keys(got), keys({at + static_cast<std::ptrdiff_t>(from),
                                     at + static_cast<std::ptrdiff_t>(to)}))
              << urls_[s] << " from sample " << from << " to " << to;
        }
      }
    }
  }

  void parts_by_number() {
    for (std::size_t s = 0; s < by_shard_.size(); ++s) {
      const auto count = std::ssize(by_shard_[s]);
      for (std::ptrdiff_t skip = 0; skip <= count; ++skip) {
        for (std::ptrdiff_t most = 0; most <= count; ++most) {
          const auto got =
              samples_of({{.shard = static_cast<std::int64_t>(s), .skip = skip, .samples = most}});
          const auto at = by_shard_[s].begin() + skip;
          EXPECT_EQ(keys(got), keys({at, at + std::min(most, count - skip)}))
              << urls_[s] << " " << most << " samples after " << skip;
        }
      }
    }
  }

  lane_plan<sample> plan_of(const shard_list_options& o) const {
    return shards(urls_, o) | read_samples(format_);
  }

  void stopped_anywhere() {
    expect_resumable(
        eng_, interleaved(plan_of({.seed = 3, .lanes = 2, .epochs = 2})),
        [](const sample& s) { return s.key; }, 2);
  }

  void equal_epochs() {
    shard_index index;
    for (std::size_t s = 0; s < urls_.size(); ++s) {
      index.shards.push_back({.url = urls_[s],
                              .samples = std::ssize(by_shard_[s]),
                              .md5 = "",
                              .dataset = "",
                              .blocks = {}});
    }
    const auto known = std::make_shared<const shard_index>(std::move(index));
    for (const int world : {1, 2, 3}) {
      std::vector<std::string> got;
      for (int rank = 0; rank < world; ++rank) {
        const auto plan = plan_of({.rank = rank,
                                   .world_size = world,
                                   .lanes = world,
                                   .mode = epoch_mode::equal,
                                   .index = known});
        auto data = eng_.run(plan);
        const auto mine = keys_of_epoch(data);
        EXPECT_EQ(mine.size(), all_.size() / static_cast<std::size_t>(world));
        expect_resumable(eng_, interleaved(plan), [](const sample& s) { return s.key; }, 3);
        got.insert(got.end(), mine.begin(), mine.end());
      }
      std::ranges::sort(got);
      EXPECT_EQ(std::ranges::adjacent_find(got), got.end()) << world << " ranks";
    }
  }

  // An epoch that is resumed with other numbers of ranks and the same number of lanes.
  void other_worlds(const std::vector<int>& worlds) {
    std::vector<std::string> got;
    std::optional<state> saved;
    for (std::size_t w = 0; w < worlds.size(); ++w) {
      const int world = std::min(worlds[w], static_cast<int>(urls_.size()));
      std::vector<state> states;
      for (int rank = 0; rank < world; ++rank) {
        auto data = eng_.run(plan_of({.rank = rank, .world_size = world, .lanes = world}));
        if (saved) data.restore(*saved);
        const std::size_t share = all_.size() / worlds.size() / static_cast<std::size_t>(world);
        for (std::size_t i = 0; w + 1 == worlds.size() || i < share; ++i) {
          const auto s = data.next();
          if (!s) break;
          got.push_back(s->key);
        }
        states.push_back(state::from_json(data.save().to_json()).value());
      }
      saved = merged(states);
    }
    std::ranges::sort(got);
    EXPECT_EQ(got, all_) << "worlds " << fmt::format("{}", fmt::join(worlds, "-"));
  }

  engine& eng_;
  std::vector<std::string> urls_;
  std::shared_ptr<const sample_source> format_;
  std::vector<std::vector<found>> by_shard_;
  std::vector<std::string> all_;  // keys, sorted
};

}  // namespace millrace::testing
