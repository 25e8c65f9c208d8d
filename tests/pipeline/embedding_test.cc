#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>

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

// A program's code that calls the library from a callback of the library.

class throws_in_states final : public detail::passing<sample> {
 public:
  throws_in_states(std::unique_ptr<stream<sample>> items, bool in_save)
      : passing(std::move(items)), in_save_(in_save) {}
  awaitable<outcome> next() override { return items_->next(); }
  void save(state& to) const override {
    if (in_save_) throw std::runtime_error("no save");
    items_->save(to);
  }
  void restore(const state& from) override {
    if (!in_save_) throw std::runtime_error("no restore");
    items_->restore(from);
  }

 private:
  bool in_save_;
};

class Embedding : public testing::text_shards {
 protected:
  static lane_plan<sample> head() {
    return shards(urls(), {.seed = 1, .lanes = 2}) | untar() | group_by_key();
  }
  template <class F>
  static error error_of_call(F f) {
    try {
      bounded("a call that is to fail", f);
    } catch (const failure& thrown) {
      return thrown.why();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }
  // Batches of two images, by an engine with this allocator.
  std::unique_ptr<loader<host_batch>> batches_by(host_allocator& allocator) {
    const std::string path = folder_ / "f.tar";
    write_fake_shards({path}, {.samples = 4, .classes = 2, .size = 40});
    auto how = with_memory_store(store_);
    how.allocator = &allocator;
    engine eng(how);  // the loader keeps what it needs of it
    return std::make_unique<loader<host_batch>>(eng.run(shards({path}) | untar() | group_by_key() |
                                                        decode_jpeg({.size = 32}) |
                                                        batch({.size = 2})));
  }

  const testing::temporary_folder folder_;
  engine eng_{with_memory_store(store_)};
};

TEST_F(Embedding, AStageThatThrowsInSaveOrRestoreIsNamed) {
  for (const bool in_save : {true, false}) {
    const stage<sample, sample> own{"own", [=](run_context&, std::unique_ptr<stream<sample>> from) {
                                      return std::make_unique<throws_in_states>(std::move(from),
                                                                                in_save);
                                    }};
    const lane_stage<sample, sample> in_lane{
        .name = "own",
        .wrap =
            [=](lane_context&, std::unique_ptr<stream<sample>> from) {
              return std::make_unique<throws_in_states>(std::move(from), in_save);
            },
        .unchanged = true};
    const auto same = [](sample s) { return s; };
    for (const plan<sample>& what :
         {interleaved(head()) | own, interleaved(head() | in_lane | shuffle()),
          interleaved(head()) | own | map(same) | on_error(skip_errors()) | prefetch(2)}) {
      auto data = eng_.run(what);
      const error why = error_of_call([&] {
        if (in_save) {
          data.next();
          data.save();
        } else {
          data.restore(eng_.run(what).save());
        }
      });
      EXPECT_EQ(why.what(), in_save ? "the stage 'own' threw std::runtime_error: no save"
                                    : "the stage 'own' threw std::runtime_error: no restore");
    }
  }
}

TEST_F(Embedding, AnAllocatorThatThrowsIsNamed) {
  class throwing final : public host_allocator {
   public:
    std::byte* allocate(std::size_t /*size*/) override {
      throw std::runtime_error("pinned memory is gone");
    }
    void release(std::byte* /*data*/, std::size_t /*size*/) noexcept override {}
  } allocator;
  const auto data = batches_by(allocator);
  const std::string said = "the host_allocator threw std::runtime_error: pinned memory is gone";
  EXPECT_EQ(error_of_call([&] { data->next(); }).what(), said);
  EXPECT_EQ(error_of_call([&] { data->save(); }).what(), said);
}

TEST_F(Embedding, AnAllocatorWithoutMemoryIsNamed) {
  class empty final : public host_allocator {
   public:
    std::byte* allocate(std::size_t /*size*/) override { return nullptr; }
    void release(std::byte* /*data*/, std::size_t /*size*/) noexcept override {}
  } allocator;
  const auto data = batches_by(allocator);
  EXPECT_EQ(error_of_call([&] { data->next(); }).kind(), errc::no_memory);
}

// Returns an error of this kind where it is opened, or once it is read.
engine_options with_failing_source(errc kind, bool when_opened) {
  class failing final : public byte_source {
   public:
    explicit failing(errc kind) : kind_(kind) {}
    awaitable<result<bytes>> read() override { co_return error(kind_, "mine"); }

   private:
    errc kind_;
  };
  engine_options how;
  how.add_sources = [=](source_registry& to) {
    to.add("mine",
           [=](source_context /*context*/, std::string /*text*/, url /*where*/,
               byte_range /*range*/) -> awaitable<result<std::unique_ptr<byte_source>>> {
             return [](errc kind, bool at_once) -> awaitable<result<std::unique_ptr<byte_source>>> {
               if (at_once) co_return error(kind, "mine");
               co_return std::make_unique<failing>(kind);
             }(kind, when_opened);
           });
  };
  return how;
}

TEST_F(Embedding, ErrorsOfOwnSourcesAreSkippedWhereBytesCannotBeRead) {
  const testing::temporary_folder folder;
  const std::string path = folder / "f.tar";
  write_fake_shards({path}, {.samples = 4, .classes = 2, .size = 40});
  for (const bool when_opened : {true, false}) {
    for (const errc kind : {errc::not_found, errc::io_failed, errc::timed_out}) {
      engine eng(with_failing_source(kind, when_opened));
      auto data =
          eng.run(shards({"mine:a", path}) | untar() | group_by_key() | on_error(skip_errors()));
      std::size_t given = 0;
      bounded("two shards", [&] {
        for (auto& s : data) given += s.fields.empty() ? 0 : 1;
      });
      EXPECT_EQ(given, 4U) << kind_name(kind);
      EXPECT_EQ(data.counts().skipped[kind], 1U) << kind_name(kind);
    }
    engine eng(with_failing_source(errc::usage, when_opened));
    auto data =
        eng.run(shards({"mine:a", path}) | untar() | group_by_key() | on_error(skip_errors()));
    const error why = error_of_call([&] {
      while (data.next()) {
      }
    });
    EXPECT_EQ(why.kind(), errc::usage) << why.what();
  }
}

TEST_F(Embedding, SourcesThatNoUrlCanNameAreRefused) {
  const source_factory good = [](source_context, std::string, url,
                                 byte_range) -> awaitable<result<std::unique_ptr<byte_source>>> {
    co_return error(errc::not_found, "none");
  };
  source_registry registry;
  EXPECT_NO_THROW(registry.add("Mine+2.x-y", good));
  for (const char* scheme : {"", "we ird", "a:", "a/b"}) {
    EXPECT_EQ(error_of_call([&] { registry.add(scheme, good); }).kind(), errc::usage) << scheme;
  }
  EXPECT_EQ(error_of_call([&] { registry.add("x", nullptr); }).kind(), errc::usage);
}

TEST_F(Embedding, ASinkOfTheLogMayLogAndBeReplaced) {
  std::vector<std::string> told;
  set_log_sink([&](std::string_view line) {
    told.emplace_back(line);
    log_notice("from within");
    set_log_sink([&](std::string_view next) { told.push_back("second: " + std::string(next)); });
  });
  bounded("a sink that logs", [] {
    log_notice("one");
    log_notice("two");
  });
  set_log_sink(nullptr);
  EXPECT_EQ(told, (std::vector<std::string>{"one", "second: two"}));
}

// They would wait for their own thread.
TEST_F(Embedding, OtherLoadersOfTheEngineAreRefusedInFunctions) {
  auto how = with_memory_store(store_, 1);
  engine one(how);
  engine two(how);
  for (const int threads : {0, 1}) {
    auto inner = one.run(interleaved(head()) | map([](sample s) { return s; }, {.threads = 1}));
    auto outer = one.run(interleaved(head()) | map(
                                                   [&](sample s) {
                                                     inner.next();
                                                     return s;
                                                   },
                                                   {.threads = threads}));
    const error why = error_of_call([&] { outer.next(); });
    EXPECT_EQ(why.kind(), errc::usage);
    EXPECT_EQ(why.what_to_do(), "give that loader another engine");

    auto made_there = one.run(interleaved(head()) | map(
                                                        [&](sample s) {
                                                          one.run(interleaved(head()));
                                                          return s;
                                                        },
                                                        {.threads = threads}));
    bounded("a loader that is made in a function",
            [&] { EXPECT_EQ(error_of_call([&] { made_there.next(); }).kind(), errc::usage); });

    auto others = two.run(interleaved(head()));
    auto with_others = one.run(interleaved(head()) | map(
                                                         [&](sample s) {
                                                           s.key += others.next()->key;
                                                           return s;
                                                         },
                                                         {.threads = threads}));
    bounded("a loader of another engine",
            [&] { EXPECT_EQ(keys_of_epoch(with_others).size(), all_keys().size()); });
  }
}

// So would a loader that is asked in a function of its own plan, or by two threads at once.
TEST_F(Embedding, OneCallOfALoaderAtATime) {
  for (const int threads : {0, 2}) {
    for (const bool saves : {false, true}) {
      loader<sample>* self = nullptr;
      auto data =
          eng_.run(interleaved(head()) | map(
                                             [&](sample s) {
                                               saves ? void(self->save()) : void(self->next());
                                               return s;
                                             },
                                             {.threads = threads}));
      self = &data;
      bounded("a loader that is called for its own items", [&] {
        const error why = error_of_call([&] { data.next(); });
        EXPECT_EQ(why.kind(), errc::usage) << why.message();
      });
    }
  }
  auto data = eng_.run(interleaved(head()));
  std::atomic<int> refused = 0;
  const auto call = [&] {
    try {
      while (refused == 0) data.wait_for(std::chrono::microseconds(100));
    } catch (const failure& f) {
      EXPECT_NE(f.why().message().find("another call of it was under way"), std::string::npos);
      ++refused;
    }
  };
  bounded("a loader that two threads call", [&] {
    const std::jthread first(call);
    call();
  });
  EXPECT_GT(refused, 0);
}

// Two that ask each other would wait for ever.
TEST_F(Embedding, FiguresOfALoaderOfAnotherThreadAreRefusedOnAnIoThread) {
  auto how = with_memory_store(store_);
  how.io_threads = 2;
  engine two(how);
  auto first = two.run(interleaved(head()));
  std::optional<error> why;
  auto second = two.run(interleaved(head()) | map([&](sample s) {
                          try {
                            first.stats();
                          } catch (const failure& f) {
                            why = f.why();
                          }
                          return s;
                        }));
  bounded("figures of another loader", [&] { second.next(); });
  ASSERT_TRUE(why);
  EXPECT_EQ(why->kind(), errc::usage);
  auto third = two.run(interleaved(head()) | map(
                                                 [&](sample s) {
                                                   first.stats();
                                                   return s;
                                                 },
                                                 {.threads = 1}));
  bounded("figures in the pool", [&] { EXPECT_TRUE(third.next()); });
}

// The consumer asked for it and went on; save() would wait for the function that calls it.
TEST_F(Embedding, AFunctionThatAnswersLaterTakesNoState) {
  loader<sample>* self = nullptr;
  std::promise<void> asked;
  auto data = eng_.run(interleaved(head()) | map(
                                                 [&, wait = asked.get_future().share()](sample s) {
                                                   wait.wait();
                                                   self->save();
                                                   return s;
                                                 },
                                                 {.threads = 1}));
  self = &data;
  EXPECT_FALSE(data.wait_for(std::chrono::milliseconds(1)));
  asked.set_value();
  const error why = error_of_call([&] { data.next(); });
  EXPECT_EQ(why.kind(), errc::usage) << why.message();
}

TEST_F(Embedding, FiguresMayBeAskedForInFunctions) {
  for (const int threads : {0, 1}) {
    loader<sample>* self = nullptr;
    std::atomic<std::uint64_t> seen = 0;
    auto data = eng_.run(interleaved(head()) | map(
                                                   [&](sample s) {
                                                     seen += self->stats().stages.size();
                                                     seen += self->counts().delivered;
                                                     return s;
                                                   },
                                                   {.threads = threads}));
    self = &data;
    bounded("figures", [&] { EXPECT_EQ(keys_of_epoch(data).size(), all_keys().size()); });
    EXPECT_GT(seen, all_keys().size());
  }
}

// The item that the function is processing would be in no state.
TEST_F(Embedding, AStateIsNotTakenInTheMiddleOfAnItem) {
  loader<sample>* self = nullptr;
  auto data = eng_.run(interleaved(head()) | map([&](sample s) {
                         self->save();
                         return s;
                       }));
  self = &data;
  const error why = error_of_call([&] { data.next(); });
  EXPECT_EQ(why.kind(), errc::usage);
  EXPECT_NE(why.what().find("an item in hand"), std::string::npos) << why.what();
}

// A resumed run would read another item in its place.
TEST_F(Embedding, ItemsOfAMapHaveTheOriginOfTheirs) {
  struct text_item {
    std::string key;
    origin where;
  };
  for (const int threads : {0, 2}) {
    const auto given = [&](auto make) {
      auto data = eng_.run(interleaved(head()) | map(make, {.threads = threads}));
      return data.next()->key;
    };
    EXPECT_EQ(given([](const sample& s) { return text_item{s.key, s.where}; }),
              given([](sample s) { return s; }));
    const error why = error_of_call([&] {
      auto data = eng_.run(
          interleaved(head()) |
          map([](const sample& s) { return text_item{s.key, {.lane = 1}}; }, {.threads = threads}));
      data.next();
    });
    EXPECT_EQ(why.kind(), errc::usage);
    EXPECT_NE(why.message().find("whose `where` is not that of the item"), std::string::npos);
  }
}

// Each thread starts its own loaders.
TEST_F(Embedding, ThreadsShareAnEngine) {
  auto how = with_memory_store(store_);
  how.io_threads = 2;
  engine eng(how);
  std::atomic<std::size_t> given = 0;
  bounded("loaders of threads", [&] {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int run = 0; run < 4; ++run) {
          auto data = eng.run(head() | shuffle({.samples = 20}));
          given += keys_of_epoch(data).size();
        }
      });
    }
  });
  EXPECT_EQ(given, 16 * all_keys().size());
}

}  // namespace
}  // namespace millrace
