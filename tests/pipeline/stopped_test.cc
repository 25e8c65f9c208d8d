// A stop ends a run that never waits: its bytes are in memory, so nothing in it suspends.
#include <gtest/gtest.h>

#include <stop_token>

#include "millrace/millrace.h"
#include "tests/support/seeds.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::with_memory_store;

// A user-defined format: a hundred samples a shard, made without any bytes.
class made_reader final : public sample_reader {
 public:
  made_reader(lane_context& lane, const shard_ref& which, std::int64_t at)
      : lane_(lane.lane), which_(which), given_(at) {}
  awaitable<result<std::optional<sample>>> next() override {
    if (given_ == 100) co_return std::optional<sample>();
    const std::int64_t at = given_++;
    sample s;
    s.key = fmt::format("{}.{}", which_.shard, at);
    s.where = {.lane = lane_, .shard = which_.shard, .offset = at, .epoch = which_.epoch};
    co_return s;
  }
  std::int64_t offset() const override { return given_; }
  std::int64_t given() const override { return given_; }
  bool is_broken() const override { return false; }

 private:
  std::int64_t lane_;
  shard_ref which_;
  std::int64_t given_;
};

class made_format final : public sample_source {
 public:
  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    return std::make_unique<made_reader>(lane, which, at.offset);
  }
};

constexpr std::int64_t for_ever = std::int64_t{1} << 60;

lane_plan<sample> made(const shard_list_options& o = {.lanes = 2}) {
  return shards({"a", "b", "c"}, o) | read_samples(std::make_shared<made_format>());
}

// Stops a run from a function of its plan, in its thousandth call.
class stopper {
 public:
  void pass() const {
    if (++state_->calls == 1000 && state_->whom != nullptr) state_->whom->stop();
  }
  void watch(loader<sample>& data) const { state_->whom = &data; }

 private:
  struct shared {
    int calls = 0;
    loader<sample>* whom = nullptr;
  };
  std::shared_ptr<shared> state_ = std::make_shared<shared>();
};

template <class T>
errc end_of(loader<T>& data) {
  try {
    data.next();
  } catch (const failure& f) {
    EXPECT_EQ(f.why().sample_key(), "") << f.what();
    return f.kind();
  }
  return errc::internal;
}

class Stopped : public testing::text_shards {
 protected:
  // next() of a plan that yields nothing ends when the run is stopped; then the run can be saved
  // and the loader destroyed.
  template <class F>
  void expect_stopped(const std::string& what, F make_plan) {
    bounded(what, [&] {
      const stopper by;
      auto data = eng_.run(make_plan(by));
      by.watch(data);
      EXPECT_EQ(end_of(data), errc::stopped) << what;
      EXPECT_EQ(end_of(data), errc::stopped) << what << ", asked again";
      EXPECT_NO_THROW(data.save()) << what;
    });
  }

  engine eng_{with_memory_store(store_)};
};

std::string name_or_end(const std::optional<sample>& s) {
  return s ? s->key : "end";
}

TEST_F(Stopped, TheNextItemIsNotGiven) {
  for (const bool by_token : {false, true}) {
    for (const std::size_t before : {0U, 1U, 120U, 299U, 300U, 301U}) {
      std::stop_source stop;
      auto data = eng_.run(made(), stop.get_token());
      auto whole = eng_.run(made());
      for (std::size_t i = 0; i < before; ++i)
        ASSERT_EQ(name_or_end(data.next()), name_or_end(whole.next()));
      if (by_token) stop.request_stop();
      if (!by_token) data.stop();
      EXPECT_EQ(end_of(data), errc::stopped) << before;
      EXPECT_EQ(end_of(data), errc::stopped) << before;
      // The state saved lacks nothing and repeats nothing.
      auto resumed = eng_.run(made());
      resumed.restore(data.save());
      for (std::size_t i = before; i < 303; ++i)
        ASSERT_EQ(name_or_end(resumed.next()), name_or_end(whole.next()));
    }
  }
}

// A stage that was stopped while waiting has its own text; the run reports the same one wherever
// the stop was met.
TEST_F(Stopped, OneThingIsSaidWhereverTheStopMetTheRun) {
  loader<sample>* whom = nullptr;
  const auto waits = map([&](sample s) -> result<sample> {
    if (s.key == "0.0") return s;
    whom->stop();
    return error(errc::stopped, "stopped while waiting for memory").at("a");
  });
  auto data = eng_.run(interleaved(made({.lanes = 1, .shuffle = false})) | waits);
  whom = &data;
  EXPECT_TRUE(data.next());
  try {
    data.next();
    ADD_FAILURE() << "not stopped";
  } catch (const failure& f) {
    EXPECT_STREQ(f.what(), "stopped: the run was stopped");
  }
}

TEST_F(Stopped, AStageThatLeavesEverythingOutReturns) {
  const auto nothing = [](stopper by) {
    return map([by](const sample&) {
      by.pass();
      return std::optional<sample>();
    });
  };
  const auto none = [](stopper by) {
    return select([by](const sample&) {
      by.pass();
      return false;
    });
  };
  for (const auto mode : {epoch_mode::exact, epoch_mode::resample}) {
    const shard_list_options o{.lanes = 2, .mode = mode, .epochs = std::int64_t{1} << 60};
    const std::string of = mode == epoch_mode::exact ? " of epochs" : " of draws";
    expect_stopped("map" + of, [&](stopper by) { return made(o) | nothing(by) | epochs_of(5); });
    expect_stopped("map and prefetch" + of, [&](stopper by) {
      return made(o) | nothing(by) | repeated(1000) | prefetch(2);
    });
    expect_stopped("select behind the lanes" + of,
                   [&](stopper by) { return interleaved(made(o)) | none(by) | epochs_of(5); });
    expect_stopped("a slice" + of, [&](stopper by) {
      const auto passed = map([by](sample s) {
        by.pass();
        return s;
      });
      return made(o) | passed | epochs_of(1 << 30) | slice(1 << 20, 1 << 21);
    });
  }
  const shard_list_options draws{.lanes = 2, .mode = epoch_mode::resample};
  expect_stopped("select", [&](stopper by) { return (made(draws) | none(by)) | epochs_of(5); });
  expect_stopped("files", [&](stopper by) {
    const auto no_file = [by](std::string_view) {
      by.pass();
      return false;
    };
    return interleaved(shards(urls(), draws) | untar({.select = no_file}) | group_by_key());
  });
}

// The function that fails a sample also asks for the stop: what was skipped is counted in the
// stopped run, and in no later one.
TEST_F(Stopped, WhatWasSkippedIsNotSkippedAgain) {
  const auto same = [](sample s) { return s; };
  for (int kind = 0; kind < 4; ++kind) {
    for (const char* bad : {"s000000", "s000020", "s001044"}) {
      const auto unwanted = [bad](std::stop_source* stop) {
        return [bad, stop](sample s) -> result<std::optional<sample>> {
          if (s.key != bad) return std::optional(std::move(s));
          if (stop != nullptr) stop->request_stop();
          return error(errc::bad_image, "unwanted").skippable();
        };
      };
      const auto plan_of = [&](std::stop_source* stop) -> plan<sample> {
        auto f = unwanted(stop);
        auto head = shards(urls(2), {.lanes = 2}) | untar() | group_by_key();
        const auto told = on_error(skip_up_to(1));
        if (kind == 0)
          return head | sample_stage{"f", f} | shuffle({.samples = 10, .seed = 1}) | told;
        if (kind == 1) return interleaved(std::move(head)) | map(f) | map(same) | told;
        if (kind == 2)
          return interleaved(std::move(head)) | map(f, {.threads = 2}) | map(same) | told;
        return interleaved(std::move(head)) | map(f) | map(same) | prefetch(2) | told;
      };
      SCOPED_TRACE(fmt::format("{} {}", kind, bad));
      std::stop_source stop;
      auto data = eng_.run(plan_of(&stop), stop.get_token());
      int given = 0;
      try {
        while (data.next()) ++given;
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::stopped) << f.what();
      }
      EXPECT_TRUE(stop.stop_requested()) << kind;
      auto resumed = eng_.run(plan_of(nullptr));
      resumed.restore(data.save());
      EXPECT_NO_THROW({
        while (resumed.next()) ++given;
      });
      EXPECT_EQ(given, 40 + 45 - 1) << kind << " " << bad;
      EXPECT_EQ(data.counts().skipped_in_all() + resumed.counts().skipped_in_all(), 1U)
          << kind << " " << bad;
    }
  }
}

// A lane that is not asked again before the state is saved has also moved past what failed.
TEST_F(Stopped, WhatWasSkippedIsInNoLaterState) {
  const std::string whole = testing::text_shard(7000, 40, 3000);
  std::string damaged = whole;
  const auto header = whole.find("ustar", whole.size() / 2) - 257;
  damaged.replace(header, 512, std::string(512, 'x'));
  store_->put("bad", damaged);
  auto data_of = [&](int kind) -> lane_plan<sample> {
    std::vector<std::string> list = urls(3);
    list[1] = "memory:bad";
    const sample_stage fails{"f", [](sample s) -> result<std::optional<sample>> {
                               if (s.key.ends_with("3")) {
                                 return error(errc::bad_image, "unwanted").skippable();
                               }
                               return std::optional(std::move(s));
                             }};
    auto lanes = shards(list, {.lanes = 3}) | untar() | group_by_key();
    if (kind == 0) return lanes | fails;
    if (kind == 1) return lanes | shuffle({.samples = 9, .seed = 1});
    if (kind == 2) return lanes | fails | shuffle({.samples = 9, .seed = 1});
    return mix({{lanes | fails, 1}, {shards(urls(2), {.lanes = 3}) | untar() | group_by_key(), 1}});
  };
  std::uint64_t place = 0;
  for (int kind = 0; kind < 4; ++kind) {
    const auto what = interleaved(data_of(kind)) | on_error(skip_errors());
    auto whole_run = eng_.run(what);
    std::vector<std::string> keys;
    while (auto s = whole_run.next()) keys.push_back(s->key);
    const auto skipped = whole_run.counts().skipped_in_all();
    EXPECT_GT(skipped, 0U);
    for (std::size_t cut = 0; cut <= keys.size(); ++cut) {
      if (!testing::is_taken(place++)) continue;
      auto data = eng_.run(what);
      for (std::size_t i = 0; i < cut; ++i) ASSERT_EQ(name_or_end(data.next()), keys[i]);
      auto resumed = eng_.run(what);
      resumed.restore(data.save());
      for (std::size_t i = cut; i < keys.size(); ++i)
        ASSERT_EQ(name_or_end(resumed.next()), keys[i]) << kind << " " << cut;
      EXPECT_FALSE(resumed.next());
      EXPECT_EQ(data.counts().skipped_in_all() + resumed.counts().skipped_in_all(), skipped)
          << kind << " " << cut;
    }
  }
}

// Passes samples on. At the tenth, code that cannot be interrupted asks for the stop and then
// throws.
class throws_when_stopped final : public detail::passing<sample> {
 public:
  throws_when_stopped(run_context& run, std::unique_ptr<stream<sample>> from,
                      std::stop_source* stop)
      : passing(std::move(from)), run_(run), stop_(stop) {}
  awaitable<outcome> next() override {
    auto item = co_await items_->next();
    if (stop_ == nullptr || ++taken_ != 10) co_return item;
    co_await offload(run_.io, run_.threads.cpu(), [this] { stop_->request_stop(); });
    throw failure(error(errc::bad_image, "unwanted").skippable());
  }

 private:
  run_context& run_;
  std::stop_source* stop_;
  int taken_ = 0;
};

TEST_F(Stopped, AStageThatThrowsMeanwhileLosesNoState) {
  const auto plan_of = [&](std::stop_source* stop) {
    const stage<sample, sample> own{
        "own", [stop](run_context& run, std::unique_ptr<stream<sample>> from) {
          return std::make_unique<throws_when_stopped>(run, std::move(from), stop);
        }};
    return interleaved(shards(urls(2), {.lanes = 2}) | untar() | group_by_key()) | own |
           on_error(skip_errors());
  };
  for (int i = 0; i < 100; ++i) {
    std::stop_source stop;
    auto data = eng_.run(plan_of(&stop), stop.get_token());
    int given = 0;
    try {
      while (data.next()) ++given;
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::stopped) << f.what();
    }
    auto resumed = eng_.run(plan_of(nullptr));
    resumed.restore(data.save());
    while (resumed.next()) ++given;
    EXPECT_EQ(given + static_cast<int>(data.counts().skipped_in_all()), 40 + 45);
  }
}

}  // namespace
}  // namespace millrace
