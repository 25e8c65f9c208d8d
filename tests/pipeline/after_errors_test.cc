// A state saved after any error lacks no sample and repeats none, and late answers delay nothing
// else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "engine/coroutines/async.h"
#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::index_of;
using testing::tar_builder;
using testing::with_memory_store;

constexpr int shards_in_all = 4;
constexpr int samples_of_each = 24;
constexpr std::size_t samples_in_all = shards_in_all * samples_of_each;

// Shards "memory:0" to "memory:3", one of which may be missing for a while.
struct changing_store {
  std::shared_ptr<memory_store> objects = std::make_shared<memory_store>(50'000);
  std::atomic<int> away = -1;
  std::atomic<int> lengths_asked = 0;
};

awaitable<result<std::unique_ptr<byte_source>>> open_in(std::shared_ptr<changing_store> store,
                                                        source_context context, std::string text,
                                                        url where, byte_range range) {
  if (text == fmt::format("memory:{}", store->away.load())) {
    co_return error(errc::not_found, "away").at(text).skippable();
  }
  // A request for a length is answered after requests that were made later.
  const bool asks_length = range.end && *range.end == range.begin + 2;
  const int turns = asks_length ? 61 * store->lengths_asked++ % 97 : 0;
  for (int i = 0; i < turns; ++i) co_await asio::post(co_await this_executor, no_throw);
  const auto plain = memory_source_factory(store->objects);
  co_return co_await plain(std::move(context), std::move(text), std::move(where), range);
}

class AfterErrors : public ::testing::Test {
 protected:
  AfterErrors() { set_log_level(log_level::quiet); }
  ~AfterErrors() override { set_log_level(log_level::notice); }

  engine_options options() {
    auto o = with_memory_store(store_->objects);
    o.add_sources = [store = store_](source_registry& sources) {
      sources.add("memory", [store](auto context, auto text, auto where, auto range) {
        return open_in(store, std::move(context), std::move(text), std::move(where), range);
      });
    };
    return o;
  }

  // Of various sizes, one of them larger than a shuffle may hold.
  void put_shards(std::size_t size) {
    for (int s = 0; s < shards_in_all; ++s) {
      tar_builder t;
      for (int i = 0; i < samples_of_each; ++i) {
        const int number = s * samples_of_each + i;
        const bool is_large = number == 40 && size < 1_MiB;
        const auto tenth = static_cast<std::size_t>(7 * number % 10);
        const std::size_t bytes = is_large ? 1'500'000 : size / 2 + size * tenth / 10;
        t.file(fmt::format("{:03}.a", number), std::string(bytes, 'v'));
      }
      store_->objects->put(std::to_string(s), t.end().str());
    }
  }

  std::shared_ptr<changing_store> store_ = std::make_shared<changing_store>();
  std::vector<std::string> urls_ = {"memory:0", "memory:1", "memory:2", "memory:3"};
};

// Runs an epoch in several runs, some of which fail; each resumes from the state saved by the one
// before.
void check_epoch_in_runs(engine& eng, changing_store& store, const shard_index& index,
                         const std::vector<std::string>& urls, std::uint64_t seed) {
  random_stream random(seed, purpose::fake_data);
  const auto below = [&](std::uint32_t n) { return static_cast<int>(random.below(n)); };
  const bool is_indexed = below(2) == 0;
  state saved;
  std::vector<std::string> given;
  std::string told = fmt::format("seed {}", seed);
  constexpr int last = 6;
  for (int run = 0; run <= last && given.size() < samples_in_all; ++run) {
    const shard_list_options lanes{.seed = seed, .lanes = 1 + below(3)};
    const std::size_t bytes = run == last || below(2) == 0 ? 0 : 1_MiB;
    auto list = is_indexed ? indexed_shards(index, lanes) : shards(urls, lanes);
    auto data = eng.run(interleaved(std::move(list) | untar() | group_by_key() |
                                    shuffle({.samples = 30, .seed = seed, .bytes = bytes})));
    if (run > 0) data.restore(saved);
    store.away = run == last || below(2) == 0 ? -1 : below(shards_in_all);
    told += fmt::format(" | {} lanes, {} B, {} away", lanes.lanes, bytes, store.away.load());
    try {
      for (int left = run == last ? 1000 : below(40); left > 0; --left) {
        const auto s = data.next();
        if (!s) break;
        given.push_back(s->key);
      }
    } catch (const failure& f) {
      ASSERT_LT(run, last) << told << ": " << f.what();
      told += fmt::format(": {}", f.what());
    }
    store.away = -1;
    saved = state::from_json(data.save().to_json()).value();
  }
  std::ranges::sort(given);
  EXPECT_EQ(std::ranges::adjacent_find(given), given.end()) << told;
  EXPECT_EQ(given.size(), samples_in_all) << told;
}

TEST_F(AfterErrors, WhatIsSavedLacksNothing) {
  put_shards(40'000);
  engine eng(options());
  const auto index = index_of(eng, urls_);
  for (const std::uint64_t seed : testing::seeds(60)) {
    bounded(fmt::format("seed {}", seed),
            [&] { check_epoch_in_runs(eng, *store_, index, urls_, seed); });
  }
}

// A window requests memory in the order of its samples, whatever arrives late.
TEST_F(AfterErrors, AWindowIsNotHeldUpByLengthsThatComeLate) {
  put_shards(700'000);
  engine eng(options());
  const auto index = index_of(eng, urls_);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    bounded(fmt::format("seed {}", seed), [&] {
      auto data = eng.run(interleaved(indexed_shards(index, {.seed = seed, .lanes = 1}) |
                                      window_shuffle({.samples = 90, .seed = seed, .ahead = 40})));
      std::size_t n = 0;
      while (data.next()) ++n;
      EXPECT_EQ(n, samples_in_all);
    });
  }
}

}  // namespace
}  // namespace millrace
