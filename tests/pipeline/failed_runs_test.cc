// A run that fails at any of its calls returns the same error on every further call, and a run
// resumed from the state saved then yields the rest, so that every sample of the epoch comes
// exactly once.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "millrace/millrace.h"
#include "pipeline/codecs/jpeg.h"
#include "tests/support/image_shards.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::image_shards;
using testing::with_memory_store;

enum class how { throws, is_final, is_skippable };

// Fails once, at the n-th call, on any thread.
class fault {
 public:
  fault(how kind, int at) : kind_(kind), left_(std::make_shared<std::atomic<int>>(at)) {}
  std::optional<error> pass() const {
    if (--*left_ != 0) return std::nullopt;
    if (kind_ == how::throws) throw std::runtime_error("told once");
    return error(errc::bad_field, "told once").skippable(kind_ == how::is_skippable);
  }
  bool has_come() const { return *left_ <= 0; }

 private:
  how kind_;
  std::shared_ptr<std::atomic<int>> left_;
};

// Takes a sample and then fails.
class failing_stage final : public detail::passing<sample> {
 public:
  failing_stage(std::unique_ptr<stream<sample>> samples, fault f)
      : passing(std::move(samples)), fault_(std::move(f)) {}
  awaitable<outcome> next() override {
    auto item = co_await items_->next();
    if (item && *item) {
      if (auto failed = fault_.pass()) co_return *failed;
    }
    co_return item;
  }

 private:
  fault fault_;
};

// A source that fails when it is opened and then at each read.
class failing_source final : public byte_source {
 public:
  failing_source(std::unique_ptr<byte_source> from, fault f)
      : from_(std::move(from)), fault_(std::move(f)) {}
  awaitable<result<bytes>> read() override {
    if (auto failed = fault_.pass()) co_return *failed;
    co_return co_await from_->read();
  }

 private:
  std::unique_ptr<byte_source> from_;
  fault fault_;
};

awaitable<result<std::unique_ptr<byte_source>>> open_failing(source_factory from, fault f,
                                                             source_context context,
                                                             std::string text, url where,
                                                             byte_range range) {
  if (auto failed = f.pass()) co_return *failed;
  auto opened = co_await from(std::move(context), std::move(text), std::move(where), range);
  if (!opened) co_return opened.error();
  co_return std::make_unique<failing_source>(std::move(*opened), f);
}

// A user-defined format of five samples a shard, which fails when it opens a shard and then at each
// sample.
class failing_reader final : public sample_reader {
 public:
  failing_reader(const shard_ref& which, const lane_cursor& at, fault f)
      : shard_(which.shard), given_(at.offset), fault_(std::move(f)) {}
  awaitable<result<std::optional<sample>>> next() override {
    if (auto failed = fault_.pass()) {
      broken_ = true;
      co_return *failed;
    }
    if (given_ == 5) co_return std::optional<sample>();
    sample s;
    s.key = fmt::format("{}.{}", shard_, given_);
    s.where.offset = given_++;
    co_return s;
  }
  std::int64_t offset() const override { return given_; }
  std::int64_t given() const override { return given_; }
  bool is_broken() const override { return broken_; }

 private:
  std::int64_t shard_;
  std::int64_t given_;
  fault fault_;
  bool broken_ = false;
};

class failing_format final : public sample_source {
 public:
  explicit failing_format(fault f) : fault_(std::move(f)) {}
  std::unique_ptr<sample_reader> open(lane_context&, const shard_ref& which,
                                      const lane_cursor& at) const override {
    if (auto failed = fault_.pass()) throw failure(*failed);
    return std::make_unique<failing_reader>(which, at, fault_);
  }

 private:
  fault fault_;
};

void add_keys(std::vector<std::string>& to, const sample& s) {
  to.push_back(s.key);
}
void add_keys(std::vector<std::string>& to, const host_batch& b) {
  to.insert(to.end(), b.keys.begin(), b.keys.end());
}
template <class T>
void add_keys(std::vector<std::string>& to, const group_of<T>& g) {
  for (const T& item : g) add_keys(to, item);
}

struct ending {
  std::vector<std::string> keys;
  std::optional<error> failed;
};

// Reads to the end of the epoch, or to an error.
template <class T>
ending read_on(loader<T>& data) {
  ending out;
  try {
    while (auto item = data.next()) add_keys(out.keys, *item);
  } catch (const failure& f) {
    out.failed = f.why();
  }
  return out;
}

// Reads until the run fails, and returns its error.
template <class T>
struct failed_run {
  failed_run(engine& eng, const plan<T>& p) {
    auto data = eng.run(p);
    got = read_on(data);
    if (got.failed) position = state::from_json(data.save().to_json()).value();
    for (int i = 0; i < 3 && got.failed && !got.failed->is_skippable(); ++i) {
      const ending again = read_on(data);
      EXPECT_TRUE(again.keys.empty());
      EXPECT_TRUE(again.failed && again.failed->message() == got.failed->message())
          << (again.failed ? again.failed->message() : "no error");
    }
    counts = data.counts();
  }

  ending got;
  state position;
  ledger counts;
};

// Reads until the run fails, repairs what was broken, and resumes. True if the run had failed.
template <class T>
bool expect_resumed(engine& eng, const plan<T>& p, std::vector<std::string> all, const auto& mend) {
  const failed_run<T> first(eng, p);
  std::vector<std::string> keys = first.got.keys;
  std::uint64_t skipped = first.counts.skipped_in_all();
  if (first.got.failed) {
    mend();
    auto rest = eng.run(p);
    rest.restore(first.position);
    const ending second = read_on(rest);
    EXPECT_FALSE(second.failed) << second.failed->message();
    keys.insert(keys.end(), second.keys.begin(), second.keys.end());
    const ledger after = rest.counts();
    EXPECT_EQ(first.counts.delivered + after.delivered, keys.size());
    skipped += after.skipped_in_all();
  }
  std::ranges::sort(keys);
  std::ranges::sort(all);
  const auto twice = std::ranges::adjacent_find(keys);
  EXPECT_TRUE(twice == keys.end()) << *twice << " came twice";
  EXPECT_EQ(keys.size() + skipped, all.size());
  EXPECT_TRUE(std::ranges::includes(all, keys));
  return first.got.failed.has_value();
}

// Adds nothing, or one of several tails.
template <class T>
std::vector<std::pair<std::string, plan<T>>> with_tails(const plan<T>& p) {
  return {{"nothing", p},
          {"on_error", p | on_error(fail_on_error())},
          {"prefetch", p | prefetch(2)},
          {"on_error, prefetch", p | on_error(fail_on_error()) | prefetch(2)}};
}

class FailedRuns : public ::testing::Test {
 protected:
  FailedRuns() {
    for (int i = 0; i < 3; ++i) {
      store_->put("t" + std::to_string(i), testing::text_shard(i * 1000, 5, 600));
      urls_.push_back("memory:t" + std::to_string(i));
      for (int k = 0; k < 5; ++k) all_.push_back(fmt::format("s{:06}", i * 1000 + k));
    }
  }

  lane_plan<sample> head() const {
    return shards(urls_, {.seed = 3, .lanes = 2}) | untar() | group_by_key();
  }
  // Every call, each kind of fault, each tail.
  template <class F>
  void expect_resumed_everywhere(const std::string& where, const F& make_plan,
                                 std::vector<how> kinds = {how::throws, how::is_final,
                                                           how::is_skippable}) {
    for (const how kind : kinds) {
      for (std::size_t tail = 0; tail < 4; ++tail) {
        int n = 1;
        for (bool has_come = true; has_come; ++n) {
          if (!testing::is_taken(static_cast<std::uint64_t>(n))) continue;
          const fault f(kind, n);
          const auto [name, plan] = with_tails(make_plan(f))[tail];
          const std::string what = fmt::format("{}, kind {}, call {}, {} behind", where,
                                               static_cast<int>(kind), n, name);
          SCOPED_TRACE(what);
          const bool failed =
              bounded(what, [&, p = &plan] { return expect_resumed(eng_, *p, all_, [] {}); });
          has_come = f.has_come();
          EXPECT_EQ(failed, has_come);
          if (HasFailure()) return;
        }
        EXPECT_GT(n, 3) << "hardly a call has failed: " << where;
      }
    }
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  std::vector<std::string> urls_;
  std::vector<std::string> all_;
  engine eng_{with_memory_store(store_)};
};

TEST_F(FailedRuns, ByAMap) {
  for (const map_options o :
       {map_options{}, map_options{.threads = 2}, map_options{.threads = 2, .ordered = false}}) {
    for (const bool shuffled : {false, true}) {
      const std::string name = fmt::format("map on {} threads, {}", o.threads, shuffled);
      expect_resumed_everywhere(name, [&](const fault& f) {
        const auto fails = [f](sample s) -> result<sample> {
          if (auto failed = f.pass()) return *failed;
          return s;
        };
        return interleaved(shuffled ? head() | shuffle({.samples = 6}) : head()) | map(fails, o);
      });
    }
  }
}

TEST_F(FailedRuns, InFrontOfStagesThatHoldSamples) {
  const auto same = [](sample s) { return s; };
  const auto fails = [](const fault& f) {
    return map([f](sample s) -> result<sample> {
      if (auto failed = f.pass()) return *failed;
      return s;
    });
  };
  expect_resumed_everywhere("a map on threads behind", [&](const fault& f) {
    return interleaved(head()) | fails(f) | map(same, {.threads = 2});
  });
  expect_resumed_everywhere("batched behind", [&](const fault& f) {
    return interleaved(head()) | fails(f) | batched(4);
  });
  expect_resumed_everywhere("unbatched behind", [&](const fault& f) {
    return interleaved(head()) | batched(4) | unbatched() | fails(f);
  });
}

TEST_F(FailedRuns, ByAStageOfOnesOwn) {
  const auto own = [](const fault& f) {
    return stage<sample, sample>{"own", [f](run_context&, std::unique_ptr<stream<sample>> samples) {
                                   return std::make_unique<failing_stage>(std::move(samples), f);
                                 }};
  };
  expect_resumed_everywhere("behind the lanes",
                            [&](const fault& f) { return interleaved(head()) | own(f); });
  expect_resumed_everywhere("before a map on threads", [&](const fault& f) {
    return interleaved(head()) | own(f) | map([](sample s) { return s; }, {.threads = 2});
  });
  const auto in_lane = [](const fault& f) {
    return lane_stage<sample, sample>{
        .name = "own",
        .wrap =
            [f](lane_context&, std::unique_ptr<stream<sample>> samples) {
              return std::make_unique<failing_stage>(std::move(samples), f);
            },
        .unchanged = true};
  };
  expect_resumed_everywhere("in a lane",
                            [&](const fault& f) { return interleaved(head() | in_lane(f)); });
  expect_resumed_everywhere("in a lane, shuffled before", [&](const fault& f) {
    return interleaved(head() | shuffle({.samples = 6}) | in_lane(f));
  });
  expect_resumed_everywhere("in a lane, shuffled after", [&](const fault& f) {
    return interleaved(head() | in_lane(f) | shuffle({.samples = 6}));
  });
  expect_resumed_everywhere("in a mix", [&](const fault& f) {
    const auto of = [&](std::vector<std::string> urls) {
      return shards(std::move(urls), {.seed = 3, .lanes = 2}) | untar() | group_by_key() |
             in_lane(f);
    };
    return interleaved(mix({{of({urls_[0]})}, {of({urls_[1], urls_[2]})}}, {.seed = 1}));
  });
}

TEST_F(FailedRuns, ByASource) {
  for (const bool shuffled : {false, true}) {
    for (const how kind : {how::throws, how::is_final, how::is_skippable}) {
      for (std::size_t tail = 0; tail < 4; ++tail) {
        bool has_come = true;
        for (int n = 1; has_come; ++n) {
          const fault f(kind, n);
          auto o = with_memory_store(store_);
          o.add_sources = [&](source_registry& sources) {
            sources.add("memory",
                        [from = memory_source_factory(store_), f](
                            source_context context, std::string text, url where, byte_range range) {
                          return open_failing(from, f, std::move(context), std::move(text),
                                              std::move(where), range);
                        });
          };
          engine eng(o);
          const auto plan = interleaved(shuffled ? head() | shuffle({.samples = 6}) : head());
          const auto [name, tailed] = with_tails(plan)[tail];
          const std::string what = fmt::format("kind {}, call {}, {} behind, {}",
                                               static_cast<int>(kind), n, name, shuffled);
          SCOPED_TRACE(what);
          const bool failed =
              bounded(what, [&, p = &tailed] { return expect_resumed(eng, *p, all_, [] {}); });
          has_come = f.has_come();
          EXPECT_EQ(failed, has_come);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(FailedRuns, ByAFormatOfOnesOwn) {
  all_.clear();
  for (int i = 0; i < 15; ++i) all_.push_back(fmt::format("{}.{}", i / 5, i % 5));
  expect_resumed_everywhere("a format", [&](const fault& f) {
    return interleaved(shards(urls_, {.seed = 3, .lanes = 2}) |
                       read_samples(std::make_shared<failing_format>(f)));
  });
}

// Damages one block at a time, and repairs it before the run is resumed.
TEST_F(FailedRuns, ByDamageOfAnyBlock) {
  const std::string good = testing::text_shard(1000, 5, 600);
  int failed = 0;
  for (std::size_t at = 0; at < good.size() - 1024; at += 512) {
    for (std::size_t tail = 0; tail < 4; ++tail) {
      const std::string what = fmt::format("block {}, tail {}", at / 512, tail);
      SCOPED_TRACE(what);
      std::string damaged = good;
      std::memset(damaged.data() + at, '!', 512);
      store_->put("t1", damaged);
      const auto [name, plan] = with_tails(interleaved(head()))[tail];
      const auto mend = [&] { store_->put("t1", good); };
      failed += bounded(what, [&, p = &plan] { return expect_resumed(eng_, *p, all_, mend); });
    }
  }
  EXPECT_GT(failed, 20);
}

class FailedImages : public ::testing::Test {
 protected:
  // The files with these numbers are not images.
  static void put(memory_store& store, const std::vector<int>& broken) {
    const image_shards good(2, 10, 0, 1);
    for (int shard = 0; shard < 2; ++shard) {
      testing::tar_builder t;
      for (int i = shard * 10; i < shard * 10 + 10; ++i) {
        const bool is_broken = std::ranges::find(broken, i) != broken.end();
        const auto file = encode_jpeg(fake_image({.size = 24}, i % 10, 1), 24, 24, 90);
        t.file(fmt::format("k{:05}.jpg", i),
               is_broken ? std::string(file.size(), '?')
                         : std::string(reinterpret_cast<const char*>(file.data()), file.size()));
        t.file(fmt::format("k{:05}.cls", i), std::to_string(i));
      }
      store.put("i" + std::to_string(shard), t.end().str());
    }
  }
  static plan<image> decoded() {
    return shards({"memory:i0", "memory:i1"}, {.seed = 1, .lanes = 2}) | untar() | group_by_key() |
           shuffle({.samples = 6, .seed = 1}) | decode_jpeg({.size = 16, .train = false});
  }
  FailedImages() {
    for (int i = 0; i < 20; ++i) all_.push_back(fmt::format("k{:05}", i));
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  std::vector<std::string> all_;
  engine eng_{with_memory_store(store_)};
};

TEST_F(FailedImages, AreReadAgainWhereTheyEndedTheRun) {
  const auto mend = [&] { put(*store_, {}); };
  const auto same = [](image i) { return i; };
  for (int i = 0; i < 20; ++i) {
    for (const auto& batches :
         {decoded() | batch({.size = 4}), decoded() | map(same) | batch({.size = 4})}) {
      for (const auto& [name, plan] : with_tails(batches)) {
        const std::string what = fmt::format("image {}, {} behind", i, name);
        SCOPED_TRACE(what);
        put(*store_, {i});
        EXPECT_TRUE(bounded(what, [&, p = &plan] { return expect_resumed(eng_, *p, all_, mend); }));
      }
    }
  }
}

TEST_F(FailedImages, AreCountedOnceWhereTheyAreMoreThanThePolicyAllows) {
  const auto mend = [&] { put(*store_, {}); };
  const auto skips = on_error(skip_up_to(3));
  for (const auto& plan : {decoded() | skips | batch({.size = 4}),
                           decoded() | prefetch(3) | skips | batch({.size = 4}),
                           decoded() | prefetch(1) | skips | batch({.size = 4}) | prefetch(2)}) {
    for (int first = 0; first < 14; ++first) {
      SCOPED_TRACE(fmt::format("images from {} on", first));
      put(*store_, {first, first + 1, first + 2, first + 5});
      EXPECT_TRUE(bounded("images", [&] { return expect_resumed(eng_, plan, all_, mend); }));
    }
  }
}

}  // namespace
}  // namespace millrace
