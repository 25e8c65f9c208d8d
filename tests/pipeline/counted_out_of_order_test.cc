// Counting stages after stages that change the order, and before stages that hold items: wherever a
// run is cut, epochs are as long as in an unbroken run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "engine/base/random.h"
#include "millrace/millrace.h"
#include "pipeline/state/records.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using testing::same;
using testing::seeds;
using testing::with_memory_store;

// Yields every `n` items of an epoch in reverse.
class reversed_stream final : public stream<sample> {
 public:
  reversed_stream(std::unique_ptr<stream<sample>> items, std::size_t n)
      : items_(std::move(items)), n_(n) {}

  awaitable<outcome> next() override {
    for (;;) {
      if (gives_ && !held_.empty()) {
        std::optional<sample> out(std::move(held_.back()));
        held_.pop_back();
        co_return out;
      }
      gives_ = false;
      if (std::exchange(ended_, false)) co_return std::optional<sample>();
      auto item = co_await items_->next();
      if (!item) co_return item.error();
      ended_ = !*item;
      if (*item) held_.push_back(std::move(**item));
      gives_ = ended_ || held_.size() == n_;
    }
  }
  void save(state& to) const override {
    items_->save(to);
    for (const sample& s : held_) to.hold(pending_record, {&s.where, 1});
    if (ended_) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { items_->restore(from); }

 private:
  std::unique_ptr<stream<sample>> items_;
  std::size_t n_;
  std::vector<sample> held_;
  bool gives_ = false;
  bool ended_ = false;
};

stage<sample, sample> reversed(std::size_t n) {
  return {.name = "reversed",
          .wrap = [n](run_context& /*run*/,
                      std::unique_ptr<stream<sample>> items) -> std::unique_ptr<stream<sample>> {
            return std::make_unique<reversed_stream>(std::move(items), n);
          }};
}

using part = std::function<plan<sample>(plan<sample>)>;
struct named_part {
  std::string name;
  part add;
};

constexpr int all_samples = 50;
constexpr int passes = 2;

class CountedOutOfOrder : public ::testing::Test {
 protected:
  CountedOutOfOrder() {
    for (int i = 0; i < 5; ++i) {
      store_->put(std::to_string(i), testing::text_shard(i * 10, all_samples / 5, 20));
      urls_.push_back(fmt::format("memory:{}", i));
    }
  }

  // Stages that yield items in another order.
  static std::vector<named_part> fronts() {
    const auto kind = [](const sample& s) -> std::int64_t { return s.key.back() % 3; };
    const auto late = [](sample s) {
      for (int i = s.key.back() % 4; i > 0; --i) std::this_thread::yield();
      return s;
    };
    return {
        {"reversed 3", [](plan<sample> p) { return std::move(p) | reversed(3); }},
        {"reversed 7", [](plan<sample> p) { return std::move(p) | reversed(7); }},
        {"reversed 100", [](plan<sample> p) { return std::move(p) | reversed(100); }},
        {"buckets",
         [kind](plan<sample> p) {
           return std::move(p) | bucketed(kind, {{0, 4}, {1, 3}, {2, 5}}) | unbatched();
         }},
        {"unordered",
         [late](plan<sample> p) {
           return std::move(p) | map(late, {.threads = 4, .ordered = false});
         }},
        {"none", [](plan<sample> p) { return p; }},
    };
  }
  static std::vector<named_part> counts() {
    return {
        {"epochs_of 10", [](plan<sample> p) { return std::move(p) | epochs_of(10); }},
        {"epochs_of 4", [](plan<sample> p) { return std::move(p) | epochs_of(4); }},
        {"repeated 2", [](plan<sample> p) { return std::move(p) | repeated(2); }},
        {"slice", [](plan<sample> p) { return std::move(p) | slice(3, 40); }},
        {"epochs_of 5, repeated 2",
         [](plan<sample> p) { return std::move(p) | epochs_of(5) | repeated(2); }},
        {"repeated 2, epochs_of 8",
         [](plan<sample> p) { return std::move(p) | repeated(2) | epochs_of(8); }},
    };
  }
  static std::vector<named_part> backs() {
    return {
        {"threads", [](plan<sample> p) { return std::move(p) | map(same, {.threads = 2}); }},
        {"threads twice",
         [](plan<sample> p) {
           return std::move(p) | map(same, {.threads = 3}) | map(same, {.threads = 1});
         }},
        {"groups",
         [](plan<sample> p) {
           return std::move(p) | batched(3) | unbatched() | map(same, {.threads = 1}) | prefetch(2);
         }},
        {"none", [](plan<sample> p) { return p; }},
    };
  }

  // Cuts runs in succession: each makes this many calls, and the last one reads the rest.
  std::vector<int> lengths(const std::function<plan<sample>()>& what, std::vector<int> cuts) {
    std::vector<int> out;
    int length = 0;
    int empty = 0;
    std::optional<state> saved;
    cuts.push_back(10'000);
    for (const int calls : cuts) {
      auto data = engine_.run(what());
      if (saved) data.restore(*saved);
      for (int i = 0; i < calls && empty < 2; ++i) {
        const bool is_end = !data.next();
        empty = is_end && length == 0 ? empty + 1 : 0;
        if (is_end && length > 0) out.push_back(length);
        length = is_end ? 0 : length + 1;
      }
      saved = state::from_json(data.save().to_json()).value();
    }
    return out;
  }

  void check(const named_part& front, const named_part& count, const named_part& back,
             const std::vector<int>& cuts) {
    const auto what = [&] {
      return back.add(count.add(front.add(interleaved(
          shards(urls_, {.seed = 1, .lanes = 2, .epochs = passes}) | untar() | group_by_key()))));
    };
    const auto expected = lengths(what, {});
    EXPECT_EQ(lengths(what, cuts), expected) << fmt::format(
        "{} | {} | {}, cut after {}", front.name, count.name, back.name, fmt::join(cuts, ", "));
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(4000);
  std::vector<std::string> urls_;
  engine engine_{with_memory_store(store_, 4)};
};

TEST_F(CountedOutOfOrder, EpochsAreAsLongWhereverARunIsCut) {
  for (const std::uint64_t seed : seeds(40)) {
    random_stream random(seed, purpose::fake_data, 23);
    const auto below = [&](std::size_t n) {
      return static_cast<int>(random.below(static_cast<std::uint32_t>(n)));
    };
    const auto one_of = [&](const std::vector<named_part>& all) {
      return all[static_cast<std::size_t>(below(all.size()))];
    };
    const auto front = one_of(fronts());
    const auto count = one_of(counts());
    const auto back = one_of(backs());
    // Cuts also occur before all held items have come again.
    std::vector<int> cuts{below(passes * all_samples)};
    for (int more = below(3); more > 0; --more) cuts.push_back(below(2) * below(12));
    check(front, count, back, cuts);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

// Saves once more before anything has come again.
TEST_F(CountedOutOfOrder, EpochsAreAsLongWhereARunIsSavedAsItIsResumed) {
  const auto slice_of = counts()[3];
  const auto threads = backs().front();
  std::uint64_t place = 0;
  for (const named_part& front : fronts()) {
    for (int cut = 0; cut < passes * all_samples && !HasFailure(); cut += 7) {
      if (!testing::is_taken(place++)) continue;
      check(front, slice_of, threads, {cut, 0});
      check(front, slice_of, threads, {cut, 0, 0, 3});
    }
  }
}

// A state of an older version, in order: it has only the places of ends.
TEST_F(CountedOutOfOrder, AStateOfAnOlderVersionIsRead) {
  const auto what = [&] {
    return shards(urls_, {.seed = 1, .lanes = 2}) | untar() | group_by_key() | epochs_of(4) |
           map(same, {.threads = 2});
  };
  const auto rest_of = [](loader<sample>& data, std::vector<std::string> out) {
    for (auto& name : testing::names_of(data, testing::key_of)) out.push_back(std::move(name));
    return out;
  };
  auto whole = engine_.run(what());
  const auto expected = rest_of(whole, {});
  constexpr std::size_t number_of_ends = 8;
  for (std::size_t cut = 0; cut < expected.size(); ++cut) {
    auto first = engine_.run(what());
    std::vector<std::string> got;
    for (std::size_t i = 0; i < cut; ++i) {
      const auto s = first.next();
      got.push_back(s ? s->key : "end");
    }
    state saved = first.save();
    const std::string name = "epochs_of" + of_rank(0, 1);
    ASSERT_NE(saved.find(name), nullptr);
    state::record r = *saved.find(name);
    r.resize(number_of_ends + 3 + 2 * static_cast<std::size_t>(r[number_of_ends]));
    saved.put(name, r);
    auto second = engine_.run(what());
    second.restore(saved);
    EXPECT_EQ(rest_of(second, std::move(got)), expected) << "cut after " << cut;
  }
}

}  // namespace
}  // namespace millrace
