// Lifetimes: loaders outlive their engine, and batches outlive both. Objects that were moved from,
// have begun, or were inherited by a child process report that.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ranges>

#include "millrace/millrace.h"
#include "tests/support/image_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::image_shards;
using testing::with_memory_store;

class Lifetime : public ::testing::Test {
 protected:
  plan<host_batch> images() const {
    return shards(data_.urls(), {.seed = 1}) | untar() | group_by_key() |
           shuffle({.samples = 50, .seed = 1}) | decode_jpeg({.size = 16, .seed = 1}) |
           batch({.size = 16}) | prefetch(2);
  }
  engine_options how() const { return with_memory_store(data_.store()); }
  static std::size_t rest_of(loader<host_batch>& data) {
    std::size_t images = 0;
    while (auto b = data.next()) images += b->size();
    return images;
  }
  template <class F>
  static std::string said_by(F f) {
    try {
      f();
    } catch (const failure& e) {
      return e.what();
    }
    return "nothing";
  }

  image_shards data_{3, 60, 0, 1};
};

TEST_F(Lifetime, ALoaderOutlivesItsEngine) {
  auto of_temporary = engine(how()).run(images());
  EXPECT_EQ(rest_of(of_temporary), 180U);
  const auto made = [&] {
    engine eng(how());
    return eng.run(images());
  };
  auto returned = made();
  const state begin = returned.save();
  EXPECT_EQ(rest_of(returned), 180U);
  struct holder {
    std::optional<loader<host_batch>> data;  // destroyed after the engine
    engine eng;
  } h{std::nullopt, engine(how())};
  h.data.emplace(h.eng.run(images()));
  EXPECT_TRUE(h.data->next());
  // Stopped, asked and destroyed without its engine.
  auto stopped = made();
  stopped.next();
  stopped.stop();
  EXPECT_TRUE(said_by([&] { rest_of(stopped); }).starts_with("stopped: "));
  EXPECT_GT(stopped.stats().seconds, 0);
}

TEST_F(Lifetime, BatchesAndSamplesOutliveAll) {
  std::vector<host_batch> batches;
  std::vector<sample> samples;
  {
    engine eng(how());
    auto data = eng.run(images());
    for (int i = 0; i < 3; ++i) batches.push_back(*data.next());
    auto bare = eng.run(shards(data_.urls()) | untar() | group_by_key());
    samples.push_back(*bare.next());
  }
  std::size_t sum = 0;
  for (const auto& b : batches) {
    for (std::size_t i = 0; i < b.payload_bytes(); ++i) sum += b.data()[i];
  }
  EXPECT_GT(sum, 0U);
  EXPECT_FALSE(samples[0].find("jpg")->data.empty());
}

TEST_F(Lifetime, TheAllocatorIsUsedUntilTheLastBatchIsGone) {
  struct counting final : host_allocator {
    std::byte* allocate(std::size_t size) override {
      ++out;
      return default_host_allocator().allocate(size);
    }
    void release(std::byte* data, std::size_t size) noexcept override {
      --out;
      default_host_allocator().release(data, size);
    }
    std::atomic<int> out = 0;
  } allocator;
  {
    std::optional<host_batch> kept;
    {
      auto o = how();
      o.allocator = &allocator;
      engine eng(o);
      kept = eng.run(images()).next();
    }
    EXPECT_GT(allocator.out, 0);
  }
  EXPECT_EQ(allocator.out, 0);
}

TEST_F(Lifetime, RestoreAfterNextIsRefused) {
  engine eng(how());
  auto data = eng.run(images());
  data.next();
  const state position = data.save();
  const std::string said = said_by([&] { data.restore(position); });
  EXPECT_TRUE(said.starts_with("bad_state: restore() after next()")) << said;
  // It continues as if that had not happened.
  EXPECT_EQ(rest_of(data), 180U - 16);
  auto again = eng.run(images());
  again.restore(position);
  EXPECT_EQ(rest_of(again), 180U - 16);
}

// A state of another plan is refused, by whichever stage, and leaves no trace.
TEST_F(Lifetime, ARestoreThatIsRefusedChangesNothing) {
  engine eng(how());
  const auto list = shards(data_.urls(), {.seed = 1}) | untar() | group_by_key();
  const auto shuffled = list | shuffle({.samples = 50, .seed = 1});
  const std::vector<plan<sample>> plans = {interleaved(list),
                                           interleaved(shuffled),
                                           list | on_error(skip_up_to(1)),
                                           shuffled | epochs_of(40),
                                           shuffled | slice(0, 90),
                                           list | on_error(skip_up_to(1)) | prefetch(2)};
  const auto read = [&](loader<sample>& data) {
    std::vector<std::string> keys;
    for (int ends = 0; ends < 2;) {
      const auto item = data.next();
      ends = item ? 0 : ends + 1;
      if (item) keys.push_back(item->key);
    }
    return keys;
  };
  for (std::size_t saves = 0; saves < plans.size(); ++saves) {
    auto first = eng.run(plans[saves]);
    for (int i = 0; i < 55; ++i) first.next();
    const state position = first.save();
    for (std::size_t other = 0; other < plans.size(); ++other) {
      SCOPED_TRACE(fmt::format("the state of plan {}, by plan {}", saves, other));
      auto untouched = eng.run(plans[other]);
      auto data = eng.run(plans[other]);
      const std::string said = said_by([&] { data.restore(position); });
      const bool fits = saves == other || (saves == 2 && other == 5) || (saves == 5 && other == 2);
      EXPECT_EQ(said == "nothing", fits) << said;
      if (fits) continue;
      EXPECT_TRUE(said.starts_with("bad_state: ")) << said;
      EXPECT_EQ(read(data), read(untouched));
    }
  }
}

TEST_F(Lifetime, ARestoreTakesThePlaceOfThatBefore) {
  engine eng(how());
  const auto plan = shards(data_.urls(), {.seed = 1}) | untar() | group_by_key() |
                    shuffle({.samples = 50, .seed = 1}) |
                    map([](sample s) { return s; }, {.threads = 2}) | batched(8);
  auto first = eng.run(plan);
  for (int i = 0; i < 3; ++i) first.next();
  const state early = first.save();
  for (int i = 0; i < 5; ++i) first.next();
  const state late = first.save();
  for (const state& last : {early, late}) {
    auto data = eng.run(plan);
    for (const state* s : {&early, &late, &late, &last}) data.restore(*s);
    std::size_t samples = 0;
    while (auto group = data.next()) samples += group->size();
    EXPECT_EQ(samples, 180U - (last == early ? 3 : 8) * 8U);
  }
}

TEST_F(Lifetime, AStopTokenStopsTheRunAlsoWhenItIsGone) {
  engine eng(how());
  std::stop_source stop;
  {
    auto data = eng.run(images(), stop.get_token());
    EXPECT_TRUE(data.next());
    stop.request_stop();
    EXPECT_TRUE(said_by([&] { rest_of(data); }).starts_with("stopped: "));
  }
  auto begun_late = eng.run(images(), stop.get_token());
  EXPECT_TRUE(said_by([&] { rest_of(begun_late); }).starts_with("stopped: "));
  std::stop_source later;
  {
    auto data = eng.run(images(), later.get_token());
    data.next();
  }
  later.request_stop();
}

static_assert(std::ranges::input_range<loader<sample>>);
static_assert(std::ranges::input_range<loader<host_batch>>);

TEST_F(Lifetime, ALoaderIsARange) {
  engine eng(how());
  auto data = eng.run(shards(data_.urls()) | untar() | group_by_key());
  const auto size = [](const sample& s) { return s.key.size(); };
  std::size_t samples = 0;
  for (const std::size_t n : data | std::views::transform(size)) samples += n > 0 ? 1 : 0;
  EXPECT_EQ(samples, 180U);
}

TEST_F(Lifetime, MovedLoadersGoOnAndThoseMovedFromSaySo) {
  engine eng(how());
  auto first = eng.run(images());
  first.next();
  auto second = std::move(first);
  EXPECT_EQ(rest_of(second), 180U - 16);
  EXPECT_TRUE(said_by([&] { first.next(); }).starts_with("usage: "));  // NOLINT: on purpose
  EXPECT_TRUE(said_by([&] { static_cast<void>(first.save()); }).starts_with("usage: "));
  EXPECT_TRUE(said_by([&] { first.stop(); }).starts_with("usage: "));
}

// The child has none of the threads: its calls are refused, and it ends without them.
TEST_F(Lifetime, AForkedChildIsToldAndTheParentGoesOn) {
  bounded("fork", [&] {
    auto eng = std::make_unique<engine>(how());
    auto data = std::make_unique<loader<host_batch>>(eng->run(images()));
    data->next();
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      const std::string next = said_by([&] { data->next(); });
      const std::string save = said_by([&] { static_cast<void>(data->save()); });
      const std::string run = said_by([&] { eng->run(images()); });
      data.reset();
      eng.reset();
      const auto told = [](const std::string& said) {
        return said.starts_with("usage: this engine was made before fork()");
      };
      {
        engine own(how());
      }  // an engine made in the child works
      _exit(told(next) && told(save) && told(run) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(rest_of(*data), 180U - 16);
  });
}

TEST_F(Lifetime, TheEnvironmentIsReadWhereItIsAskedFor) {
  ASSERT_EQ(setenv("MILLRACE_CPU_THREADS", "3", 1), 0);
  EXPECT_EQ(engine_options::from_environment().cpu_threads, 3);
  ASSERT_EQ(setenv("MILLRACE_CPU_THREADS", "none", 1), 0);
  EXPECT_TRUE(said_by([] { engine_options::from_environment(); }).starts_with("bad_setting: "));
  ASSERT_EQ(unsetenv("MILLRACE_CPU_THREADS"), 0);
  EXPECT_EQ(engine_options::from_environment().cpu_threads, 0);
}

TEST_F(Lifetime, TheEnvironmentSetsTheLevelOfTheLogWhereItSaysOne) {
  const auto is_told = [] {
    bool told = false;
    set_log_sink([&](std::string_view) { told = true; });
    log_debug("a detail");
    set_log_sink(nullptr);
    return told;
  };
  ASSERT_EQ(setenv("MILLRACE_LOG", "debug", 1), 0);
  EXPECT_TRUE(engine_options::from_environment().tell_skipped);
  EXPECT_TRUE(is_told());
  ASSERT_EQ(unsetenv("MILLRACE_LOG"), 0);
  engine_options::from_environment();
  EXPECT_TRUE(is_told());
  ASSERT_EQ(setenv("MILLRACE_LOG", "notice", 1), 0);
  engine_options::from_environment();
  EXPECT_FALSE(is_told());
  ASSERT_EQ(unsetenv("MILLRACE_LOG"), 0);
}

}  // namespace
}  // namespace millrace
