#include <gtest/gtest.h>

#include <boost/system/system_error.hpp>

#include "engine/coroutines/async.h"
#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::keys_of_epoch;
using testing::with_memory_store;

// Whatever is thrown, wherever user code runs within a run, and whatever stages follow: next()
// fails with the text of the exception and a kind that blames neither the user's Ctrl-C nor
// millrace, and the engine runs the next plan.

struct own_struct {
  int number;
};

struct thrown_thing {
  const char* name;
  void (*thrower)();
  const char* text;  // expected in the error
  errc kind;
};

const thrown_thing things[] = {
    {"failure", [] { throw failure(error(errc::bad_field, "told by a failure")); },
     "told by a failure", errc::bad_field},
    {"skippable",
     [] { throw failure(error(errc::bad_field, "told by one skippable").skippable()); },
     "told by one skippable", errc::bad_field},
    {"runtime_error", [] { throw std::runtime_error("told by a runtime_error"); },
     "told by a runtime_error", errc::uncaught},
    {"bad_alloc", [] { throw std::bad_alloc(); }, "std::bad_alloc", errc::no_memory},
    {"system_error",
     [] {
       throw boost::system::system_error(asio::error::connection_refused, "told by a system_error");
     },
     "told by a system_error", errc::uncaught},
    {"aborted",
     [] { throw boost::system::system_error(asio::error::operation_aborted, "told by aborted"); },
     "told by aborted", errc::uncaught},
    {"int", [] { throw 42; }, "threw int", errc::uncaught},
    {"struct", [] { throw own_struct{3}; }, "own_struct", errc::uncaught},
};

// Throws once, at the n-th call, on any thread.
class bomb {
 public:
  bomb(void (*thrower)(), int at)
      : thrower_(thrower), left_(std::make_shared<std::atomic<int>>(at)) {}
  void pass() const {
    if (--*left_ == 0) thrower_();
  }

 private:
  void (*thrower_)();
  std::shared_ptr<std::atomic<int>> left_;
};

// A user-defined stage that throws in next(), save() or restore().
class throwing_stage final : public stream<sample> {
 public:
  throwing_stage(std::unique_ptr<stream<sample>> samples, std::optional<bomb> next,
                 std::optional<bomb> save, std::optional<bomb> restore)
      : samples_(std::move(samples)),
        next_(std::move(next)),
        save_(std::move(save)),
        restore_(std::move(restore)) {}
  awaitable<outcome> next() override {
    auto item = co_await samples_->next();
    if (next_) next_->pass();
    co_return item;
  }
  void save(state& to) const override {
    if (save_) save_->pass();
    samples_->save(to);
  }
  void restore(const state& from) override {
    if (restore_) restore_->pass();
    samples_->restore(from);
  }

 private:
  std::unique_ptr<stream<sample>> samples_;
  std::optional<bomb> next_;
  std::optional<bomb> save_;
  std::optional<bomb> restore_;
};

stage<sample, sample> own_stage(std::optional<bomb> next, std::optional<bomb> save = {},
                                std::optional<bomb> restore = {}) {
  return {"own", [=](run_context&, std::unique_ptr<stream<sample>> samples) {
            return std::make_unique<throwing_stage>(std::move(samples), next, save, restore);
          }};
}

// A user-defined source.
class throwing_source final : public byte_source {
 public:
  throwing_source(std::unique_ptr<byte_source> from, bomb read)
      : from_(std::move(from)), read_(std::move(read)) {}
  awaitable<result<bytes>> read() override {
    read_.pass();
    co_return co_await from_->read();
  }

 private:
  std::unique_ptr<byte_source> from_;
  bomb read_;
};

awaitable<result<std::unique_ptr<byte_source>>> open_throwing(source_factory from, bomb open,
                                                              bomb read, source_context context,
                                                              std::string text, url where,
                                                              byte_range range) {
  open.pass();
  auto opened = co_await from(std::move(context), std::move(text), std::move(where), range);
  if (!opened) co_return opened.error();
  co_return std::make_unique<throwing_source>(std::move(*opened), read);
}

// A user-defined format: three samples a shard.
class throwing_reader final : public sample_reader {
 public:
  throwing_reader(lane_context& lane, const shard_ref& which, const lane_cursor& at, bomb next)
      : lane_(lane.lane), which_(which), given_(at.offset), next_(std::move(next)) {}
  awaitable<result<std::optional<sample>>> next() override {
    next_.pass();
    if (given_ == 3) co_return std::optional<sample>();
    sample s;
    s.key = fmt::format("{}.{}", which_.shard, given_);
    s.where = {.lane = lane_, .shard = which_.shard, .offset = given_++, .epoch = which_.epoch};
    co_return s;
  }
  std::int64_t offset() const override { return given_; }
  std::int64_t given() const override { return given_; }
  bool is_broken() const override { return false; }

 private:
  std::int64_t lane_;
  shard_ref which_;
  std::int64_t given_;
  bomb next_;
};

class throwing_format final : public sample_source {
 public:
  throwing_format(bomb open, bomb next) : open_(std::move(open)), next_(std::move(next)) {}
  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    open_.pass();
    return std::make_unique<throwing_reader>(lane, which, at, next_);
  }

 private:
  bomb open_;
  bomb next_;
};

class throwing_allocator final : public host_allocator {
 public:
  explicit throwing_allocator(bomb b) : bomb_(std::move(b)) {}
  std::byte* allocate(std::size_t size) override {
    bomb_.pass();
    return default_host_allocator().allocate(size);
  }
  void release(std::byte* data, std::size_t size) noexcept override {
    default_host_allocator().release(data, size);
  }

 private:
  bomb bomb_;
};

struct run_end {
  std::optional<error> failed;
  ledger counts;
};

template <class T>
run_end run_to_its_end(loader<T> data) {
  run_end out;
  bool is_reading = true;
  try {
    while (data.next()) {
    }
    is_reading = false;
    data.save();
  } catch (const failure& f) {
    out.failed = f.why();
    // Further calls return the same error.
    for (int i = 0; i < 3 && is_reading && !f.why().is_skippable(); ++i) {
      try {
        data.next();
        ADD_FAILURE() << "continues after " << f.what();
      } catch (const failure& again) {
        EXPECT_STREQ(again.what(), f.what());
      }
    }
  }
  out.counts = data.counts();
  return out;
}

class Thrown : public testing::text_shards {
 protected:
  // Followed by nothing, on_error, prefetch, and both.
  template <class T>
  static std::vector<std::pair<std::string, plan<T>>> with_tails(const plan<T>& p) {
    return {{"nothing", p},
            {"on_error", p | on_error(skip_up_to(100))},
            {"prefetch", p | prefetch(2)},
            {"on_error, prefetch", p | on_error(skip_up_to(100)) | prefetch(2)}};
  }
  static void expect_told(const std::string& what, const thrown_thing& thing, const run_end& got) {
    if (!got.failed) {
      // Only skippable errors can be skipped.
      EXPECT_EQ(std::string(thing.name), "skippable") << what;
      EXPECT_EQ(got.counts.skipped_in_all(), 1U) << what;
      return;
    }
    EXPECT_NE(got.failed->message().find(thing.text), std::string::npos)
        << what << ": " << got.failed->message();
    EXPECT_EQ(got.failed->kind(), thing.kind) << what << ": " << got.failed->message();
  }
  void expect_usable(engine& eng) {
    auto data = eng.run(interleaved(shards(urls()) | untar() | group_by_key()));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(data.next());
  }
  // Each exception, with each tail.
  template <class F>
  void expect_told_everywhere(const std::string& where, F make_plan) {
    for (const thrown_thing& thing : things) {
      for (std::size_t tail = 0; tail < 4; ++tail) {
        const auto [name, plan] = with_tails(make_plan(thing.thrower))[tail];
        const std::string what = fmt::format("{} from {}, {} behind", thing.name, where, name);
        bounded(what, [&] {
          expect_told(what, thing, run_to_its_end(eng_.run(plan)));
          expect_usable(eng_);
        });
      }
    }
  }
  static lane_plan<sample> head() { return shards(urls()) | untar() | group_by_key(); }

  engine eng_{with_memory_store(store_)};
};

TEST_F(Thrown, ByFunctionsOfMapWhateverTheThreads) {
  for (const map_options how : {map_options{}, map_options{.threads = 1}, map_options{.threads = 2},
                                map_options{.threads = 2, .ordered = false}}) {
    const std::string name = fmt::format("map on {} threads", how.threads);
    expect_told_everywhere(name, [&](void (*thrower)()) {
      return interleaved(head()) | map(
                                       [b = bomb(thrower, 20)](sample s) {
                                         b.pass();
                                         return s;
                                       },
                                       how);
    });
  }
}

TEST_F(Thrown, ByAMapTheItemIsNamed) {
  for (const int threads : {0, 2}) {
    auto data = eng_.run(interleaved(head()) |
                         map(
                             [](sample s) {
                               if (s.key == "s001003") throw 42;
                               return s;
                             },
                             {.threads = threads}) |
                         on_error(skip_up_to(100)) | prefetch(2));
    const run_end got = run_to_its_end(std::move(data));
    ASSERT_TRUE(got.failed);
    EXPECT_EQ(got.failed->sample_key(), "s001003");
    EXPECT_EQ(got.failed->where(), "memory:t1");
    EXPECT_EQ(got.counts.skipped_in_all(), 0U);
  }
}

// If a stage throws, the error names the item that it took; if a format throws, the shard.
TEST_F(Thrown, ByAStageTheItemIsNamed) {
  class throwing_at final : public detail::passing<sample> {
   public:
    using passing::passing;
    awaitable<outcome> next() override {
      auto item = co_await items_->next();
      if (item && *item && (*item)->key == "s001003") throw std::runtime_error("on fire");
      co_return item;
    }
  };
  const auto own = [](auto&, std::unique_ptr<stream<sample>> samples) {
    return std::make_unique<throwing_at>(std::move(samples));
  };
  const lane_stage<sample, sample> in_lane{.name = "own", .wrap = own, .unchanged = true};
  const stage<sample, sample> behind{"own", own};
  for (const auto& plan : {interleaved(head() | in_lane), interleaved(head()) | behind}) {
    for (const auto& [name, tailed] : with_tails(plan)) {
      const run_end got = run_to_its_end(eng_.run(tailed));
      ASSERT_TRUE(got.failed) << name;
      EXPECT_EQ(got.failed->sample_key(), "s001003") << name;
      EXPECT_EQ(got.failed->where(), "memory:t1") << name;
    }
  }
  void (*const throws)() = [] { throw std::runtime_error("on fire"); };
  for (const auto& format : {std::make_shared<throwing_format>(bomb(throws, 2), bomb(throws, 0)),
                             std::make_shared<throwing_format>(bomb(throws, 0), bomb(throws, 5))}) {
    const run_end got = run_to_its_end(eng_.run(
        interleaved(shards(urls(), {.lanes = 1, .shuffle = false}) | read_samples(format))));
    ASSERT_TRUE(got.failed);
    EXPECT_EQ(got.failed->where(), "memory:t1") << got.failed->message();
    EXPECT_EQ(got.failed->kind(), errc::uncaught);
  }
}

TEST_F(Thrown, ByHooksOfStages) {
  expect_told_everywhere("select in a lane", [&](void (*thrower)()) {
    return interleaved(head() | select([b = bomb(thrower, 20)](const sample&) {
                         b.pass();
                         return true;
                       }) |
                       shuffle({.samples = 20}));
  });
  expect_told_everywhere("select behind lanes", [&](void (*thrower)()) {
    return interleaved(head()) | select([b = bomb(thrower, 20)](const sample&) {
             b.pass();
             return true;
           });
  });
  expect_told_everywhere("untar's rename", [&](void (*thrower)()) {
    return interleaved(shards(urls()) |
                       untar({.rename =
                                  [b = bomb(thrower, 20)](std::string_view name) {
                                    b.pass();
                                    return std::string(name);
                                  }}) |
                       group_by_key());
  });
  expect_told_everywhere("untar's select", [&](void (*thrower)()) {
    return interleaved(shards(urls()) |
                       untar({.select =
                                  [b = bomb(thrower, 20)](std::string_view) {
                                    b.pass();
                                    return true;
                                  }}) |
                       group_by_key());
  });
  expect_told_everywhere("bucketed's measure", [&](void (*thrower)()) {
    return interleaved(head()) | bucketed(
                                     [b = bomb(thrower, 20)](const sample&) {
                                       b.pass();
                                       return 1;
                                     },
                                     {{.up_to = 1, .size = 4}});
  });
}

TEST_F(Thrown, ByStagesOfOnesOwn) {
  expect_told_everywhere("next()", [&](void (*thrower)()) {
    return interleaved(head()) | own_stage(bomb(thrower, 20));
  });
  expect_told_everywhere("next() before a map on threads", [&](void (*thrower)()) {
    return interleaved(head()) | own_stage(bomb(thrower, 20)) |
           map([](sample s) { return s; }, {.threads = 2});
  });
  // Called by the prefetch stage after each item, otherwise by the program at the end.
  expect_told_everywhere("save()", [&](void (*thrower)()) {
    return interleaved(head()) | own_stage({}, bomb(thrower, 1));
  });
  auto saved = eng_.run(interleaved(head()) | own_stage({}));
  saved.next();
  const state position = saved.save();
  for (const thrown_thing& thing : things) {
    for (std::size_t tail = 0; tail < 4; ++tail) {
      const auto [name, plan] =
          with_tails(interleaved(head()) | own_stage({}, {}, bomb(thing.thrower, 1)))[tail];
      const std::string what = fmt::format("{} from restore(), {} behind", thing.name, name);
      bounded(what, [&, p = &plan] {
        auto data = eng_.run(*p);
        try {
          data.restore(position);
          FAIL() << what;
        } catch (const failure& f) {
          EXPECT_NE(std::string(f.what()).find(thing.text), std::string::npos) << what << f.what();
        }
      });
    }
  }
}

TEST_F(Thrown, BySourcesAndFormatsOfOnesOwn) {
  for (const bool at_open : {true, false}) {
    for (const thrown_thing& thing : things) {
      for (std::size_t tail = 0; tail < 4; ++tail) {
        auto how = with_memory_store(store_);
        how.add_sources = [&](source_registry& sources) {
          sources.add("memory", memory_source_factory(store_));
          sources.add(
              "own",
              [from = memory_source_factory(store_), open = bomb(thing.thrower, at_open ? 2 : 0),
               read = bomb(thing.thrower, at_open ? 0 : 20)](
                  source_context context, std::string text, url where, byte_range range) {
                return open_throwing(from, open, read, std::move(context), std::move(text),
                                     std::move(where), range);
              });
        };
        engine eng(how);
        std::vector<std::string> own;
        for (const std::string& url : urls()) own.push_back("own" + url.substr(url.find(':')));
        const auto [name, plan] =
            with_tails(interleaved(shards(own) | untar() | group_by_key()))[tail];
        const std::string what = fmt::format("{} from a source's {}, {} behind", thing.name,
                                             at_open ? "open" : "read", name);
        bounded(what, [&, p = &plan] {
          const run_end got = run_to_its_end(eng.run(*p));
          if (got.failed) {
            EXPECT_TRUE(got.failed->where().starts_with("own:t")) << got.failed->message();
          }
          // A shard is skipped whole or in part.
          const bool skipped = !got.failed && got.counts.skipped_in_all() > 0;
          if (!skipped || std::string(thing.name) != "skippable") expect_told(what, thing, got);
          expect_usable(eng);
        });
      }
    }
  }
  for (const bool at_open : {true, false}) {
    expect_told_everywhere(at_open ? "a format's open" : "a format's next", [&](auto thrower) {
      return interleaved(shards(urls()) |
                         read_samples(std::make_shared<throwing_format>(
                             bomb(thrower, at_open ? 2 : 0), bomb(thrower, at_open ? 0 : 5))));
    });
  }
}

TEST_F(Thrown, ByTheAllocatorOfBatches) {
  const testing::temporary_folder folder;
  const std::string path = folder / "f.tar";
  write_fake_shards({path}, {.samples = 40, .classes = 4, .size = 200});
  const auto images =
      shards({path}) | untar() | group_by_key() | decode_jpeg({.size = 160, .train = false});
  const auto same = [](image i) { return i; };
  for (const thrown_thing& thing : things) {
    for (const auto& batches :
         {images | batch({.size = 8}), images | map(same) | batch({.size = 8})}) {
      for (std::size_t tail = 0; tail < 4; ++tail) {
        throwing_allocator allocator(bomb(thing.thrower, 2));
        auto how = with_memory_store(store_);
        how.allocator = &allocator;
        engine eng(how);
        const auto [name, plan] = with_tails(batches)[tail];
        const std::string what = fmt::format("{} from the allocator, {} behind", thing.name, name);
        bounded(what, [&, p = &plan] {
          std::vector<host_batch> kept;  // so that memory is requested again
          auto data = eng.run(*p);
          try {
            while (auto b = data.next()) kept.push_back(std::move(*b));
            EXPECT_EQ(std::string(thing.name), "skippable") << what;
            EXPECT_EQ(data.counts().skipped_in_all(), 1U) << what;
          } catch (const failure& f) {
            EXPECT_NE(std::string(f.what()).find(thing.text), std::string::npos)
                << what << ": " << f.what();
            EXPECT_NE(f.kind(), errc::stopped) << what;
          }
          expect_usable(eng);
        });
      }
    }
  }
}

TEST_F(Thrown, ByTheSinkOfTheLogNothingIsLost) {
  for (const thrown_thing& thing : things) {
    set_log_sink([&](std::string_view) { thing.thrower(); });
    auto data = eng_.run(shards(urls()) | untar() | group_by_key() |
                         shuffle({.samples = 1000, .bytes = 80'000}));  // which memory limits
    EXPECT_EQ(bounded(thing.name, [&] { return keys_of_epoch(data).size(); }), all_keys().size());
    set_log_sink(nullptr);
  }
}

}  // namespace
}  // namespace millrace
