// A run that is continued from a saved state yields what one run would have: with more epochs than
// the run before, and with a stage of a lane that fails, always or once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/deferred.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/coroutines/async.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "millrace/millrace.h"
#include "pipeline/state/records.h"
#include "tests/support/loaders.h"
#include "tests/support/record_format.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::text_shard;
using testing::with_memory_store;

class Continued : public ::testing::Test {
 protected:
  static constexpr int shards_of_all = 6;
  static constexpr int of_shard = 5;  // samples

  Continued() {
    set_log_level(log_level::quiet);
    for (int i = 0; i < shards_of_all; ++i) {
      store_->put(std::to_string(i), text_shard(100 * i, of_shard, 100));
      urls_.push_back(fmt::format("memory:{}", i));
    }
  }
  ~Continued() override { set_log_level(log_level::notice); }

  lane_plan<sample> lanes_of(std::int64_t epochs, int lanes = 3,
                             epoch_mode mode = epoch_mode::exact) const {
    return shards(urls_, {.seed = 3, .lanes = lanes, .mode = mode, .epochs = epochs}) | untar() |
           group_by_key();
  }
  static std::string name_of(const sample& s) {
    return fmt::format("{}@{}:{}", s.key, s.where.epoch, s.where.position);
  }
  // Up to `most` calls, or until this many ends in a row: samples and errors by name.
  static std::vector<std::string> taken(loader<sample>& data, int most, int ends_in_a_row) {
    std::vector<std::string> out;
    for (int ends = 0; most > 0 && ends < ends_in_a_row; --most) {
      try {
        const auto s = data.next();
        ends = s ? 0 : ends + 1;
        if (s) out.push_back(name_of(*s));
      } catch (const failure& f) {
        if (!f.why().is_skippable()) throw;
        out.push_back("error of " + f.why().sample_key());
      }
    }
    return out;
  }
  static constexpr int everything = 100'000;
  static state as_text(const state& s) { return state::from_json(s.to_json()).value(); }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  std::vector<std::string> urls_;
  engine eng_{with_memory_store(store_)};
};

// States saved at the end of the last epoch, and after any number of further ends.
class MoreEpochs : public Continued, public ::testing::WithParamInterface<int> {
 protected:
  plan<sample> plan_of(std::int64_t epochs, int lanes = 3) const {
    const auto shuffled = lanes_of(epochs, lanes) | shuffle({.samples = 7, .seed = 2});
    const auto same = [](sample s) { return s; };
    if (GetParam() == 1) return shuffled | map(same, {.threads = 2});
    if (GetParam() == 2) return shuffled | prefetch(3);
    if (GetParam() == 3) return shuffled | map(same, {.threads = 2}) | prefetch(3);
    return interleaved(shuffled);
  }
  // Older versions saved lanes as ended after the last epoch.
  static state with_ended_lanes(const state& of) {
    state out = of;
    auto lanes = lane_records(of);
    for (lane_record& l : lanes) l.ended = true;
    out.put(lanes_record, {});
    put_lane_records(out, lanes);
    return out;
  }
};

TEST_P(MoreEpochs, GoOnWhereFewerHaveEnded) {
  auto unbroken = eng_.run(plan_of(3));
  const auto expected = taken(unbroken, everything, 5);
  ASSERT_EQ(expected.size(), std::size_t{3} * shards_of_all * of_shard);
  for (const int ends : {1, 2, 3}) {
    auto first = eng_.run(plan_of(1));
    const auto before = taken(first, everything, ends);
    state saved = as_text(first.save());
    for (const bool is_older : {false, true}) {
      if (is_older && saved.find(ends_past_record) == nullptr) continue;
      SCOPED_TRACE(fmt::format("{} ends, {}", ends, is_older ? "as older versions" : ""));
      auto got = before;
      auto second = eng_.run(plan_of(3));
      second.restore(is_older ? with_ended_lanes(saved) : saved);
      for (auto& name : taken(second, everything, 5)) got.push_back(std::move(name));
      EXPECT_EQ(got, expected);
    }
  }
}

TEST_P(MoreEpochs, CanBeDealtToOtherLanes) {
  for (const int ends : {1, 2, 3}) {
    for (const int items : {0, 1, 11, 29}) {
      SCOPED_TRACE(fmt::format("{} ends, then {} items", ends, items));
      auto first = eng_.run(plan_of(1));
      taken(first, everything, ends);
      auto second = eng_.run(plan_of(2));
      second.restore(as_text(first.save()));
      std::map<std::string, int> times;
      const auto count = [&](const sample& s) {
        ++times[fmt::format("{} {}", s.where.epoch, s.key)];
      };
      for (int n = 0; n < items;) {
        const auto s = second.next();
        if (!s) continue;  // ends that the first run had not yielded yet
        count(*s);
        ++n;
      }
      auto third = eng_.run(plan_of(2, 5));
      third.restore(as_text(second.save()));
      for (int e = 0; e < 5; ++e) {
        for (const sample& s : third) count(s);
      }
      EXPECT_EQ(times.size(), std::size_t{shards_of_all} * of_shard);
      EXPECT_TRUE(std::ranges::all_of(times, [](const auto& t) { return t.second == 1; }));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, MoreEpochs, ::testing::Range(0, 4));

// A failed sample takes no position, whether or not the run is stopped there.
TEST_F(Continued, AFailureOfALanesStageMovesNoPosition) {
  const sample_stage failing{"failing", [](sample s) -> result<std::optional<sample>> {
                               // Some adjacent ones, and the last ones of a lane.
                               const bool is_bad = s.key.ends_with("2") || s.key.ends_with("3") ||
                                                   s.key == "s000504";
                               if (is_bad)
                                 return of_sample(s, error(errc::missing_field, "no field"));
                               return std::optional(std::move(s));
                             }};
  for (const bool is_shuffled : {false, true}) {
    auto lanes = lanes_of(2) | failing;
    if (is_shuffled) lanes = lanes | shuffle({.samples = 6, .seed = 2});
    const auto same = [](sample s) { return s; };
    const plan<sample> plans[] = {interleaved(lanes), lanes | on_error(skip_errors()),
                                  lanes | map(same, {.threads = 2}) | on_error(skip_errors()),
                                  lanes | prefetch(4)};
    for (const auto& p : plans) {
      auto unbroken = eng_.run(p);
      const auto expected = taken(unbroken, everything, 3);
      for (std::size_t stop = 0; stop < expected.size(); ++stop) {
        if (!testing::is_taken(stop)) continue;
        SCOPED_TRACE(fmt::format("{} {}, stopped after {}", is_shuffled, &p - plans, stop));
        auto first = eng_.run(p);
        auto got = taken(first, static_cast<int>(stop), 3);
        const std::size_t before = got.size();
        // Twice, because samples still to be read again are saved again.
        auto second = eng_.run(p);
        second.restore(as_text(first.save()));
        auto third = eng_.run(p);
        third.restore(as_text(second.save()));
        for (auto& name : taken(third, everything, 3)) got.push_back(std::move(name));
        // The last error is reported again: until the next call, the state is the one before it.
        const bool is_told_again = before > 0 && got.size() == expected.size() + 1 &&
                                   got[before] == got[before - 1] &&
                                   got[before].starts_with("error");
        if (is_told_again) got.erase(got.begin() + static_cast<std::ptrdiff_t>(before));
        ASSERT_EQ(got, expected);
      }
    }
  }
}

// A function that failed with a sample is fixed so that it passes the sample on, or leaves it out.
// The run is resumed from the state saved after the failure, wherever that was, and again from
// where that run was stopped.
TEST_F(Continued, AFunctionThatFailedMayLeaveOutWhatItFailedWith) {
  enum class does : std::uint8_t { pass, leave_out, fail, raise };
  const auto stage_that = [](does what) {
    return sample_stage{"mended", [what](sample s) -> result<std::optional<sample>> {
                          const bool is_bad = s.key == "s000202" || s.key == "s000004";
                          if (!is_bad || what == does::pass) return std::optional(std::move(s));
                          if (what == does::leave_out) return std::optional<sample>();
                          if (what == does::raise) throw std::runtime_error("a bug");
                          return of_sample(s, error(errc::missing_field, "no field"));
                        }};
  };
  for (const int shape : {0, 1, 2, 3, 4, 6}) {
    const auto plan_of = [&](does what) {
      auto lanes = lanes_of(1);
      if ((shape & 1) != 0) lanes = lanes | shuffle({.samples = 6, .seed = 2});
      lanes = lanes | stage_that(what);
      if ((shape & 2) != 0) lanes = mix({{lanes}});
      if ((shape & 4) != 0) lanes = lanes | shuffle({.samples = 9, .seed = 3});
      return lanes | map([](sample s) { return s; }, {.threads = 1});
    };
    const auto take = [](loader<sample>& data, std::vector<std::string>& to, int most) {
      for (; most > 0; --most) {
        const auto s = data.next();
        if (!s) break;
        to.push_back(s->key);
      }
    };
    for (const does mended : {does::pass, does::leave_out}) {
      auto whole = eng_.run(plan_of(mended));
      std::vector<std::string> expected;
      take(whole, expected, everything);
      std::ranges::sort(expected);
      for (const does before : {does::fail, does::raise}) {
        for (int more = 0; more < 4; ++more) {
          SCOPED_TRACE(fmt::format("shape {}, {} {} {}", shape, mended == does::pass,
                                   before == does::fail, more));
          auto first = eng_.run(plan_of(before));
          std::vector<std::string> got;
          EXPECT_THROW(take(first, got, everything), failure);
          auto second = eng_.run(plan_of(mended));
          second.restore(as_text(first.save()));
          take(second, got, more);
          auto third = eng_.run(plan_of(mended));
          third.restore(as_text(second.save()));
          take(third, got, everything);
          std::ranges::sort(got);
          EXPECT_EQ(got, expected);
        }
      }
    }
  }
}

// A sample that was yielded cannot be left out later: the error names it.
TEST_F(Continued, AFunctionThatLeavesOutWhatItPassedIsToldOfTheSample) {
  const auto plan_of = [&](bool drops) {
    return lanes_of(1) | select([drops](const sample& s) { return !drops || s.key != "s000202"; }) |
           shuffle({.samples = 100, .seed = 2});
  };
  auto first = eng_.run(interleaved(plan_of(false)));
  for (int i = 0; i < 3; ++i) ASSERT_NE(first.next()->key, "s000202");  // one of each lane
  auto second = eng_.run(interleaved(plan_of(true)));
  second.restore(as_text(first.save()));
  try {
    while (second.next()) continue;
    FAIL() << "no error";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::bad_state);
    EXPECT_EQ(f.why().sample_key(), "s000202") << f.what();
    EXPECT_TRUE(f.why().byte_offset()) << f.what();
  }
}

// A sample that a stage fails with once is yielded when the run is continued, even if the shuffle
// before the stage holds another draw of the same sample.
TEST_F(Continued, AFailureOnceLosesNoDraw) {
  urls_.resize(2);
  int calls_before_failure = -1;
  const sample_stage flaky{"flaky", [&](sample s) -> result<std::optional<sample>> {
                             if (--calls_before_failure == 0) {
                               return error(errc::bad_field, "once").skippable();
                             }
                             return std::optional(std::move(s));
                           }};
  const auto p = interleaved(lanes_of(1, 1, epoch_mode::resample) |
                             shuffle({.samples = 30, .seed = 1}) | flaky);
  constexpr int some = 60;
  auto unbroken = eng_.run(p);
  const auto expected = taken(unbroken, some, 1);
  for (int at = 1; at < 40; ++at) {
    SCOPED_TRACE(at);
    calls_before_failure = at;
    auto first = eng_.run(p);
    auto got = taken(first, at, 1);
    ASSERT_TRUE(got.back().starts_with("error"));
    got.pop_back();
    calls_before_failure = -1;
    auto second = eng_.run(p);
    second.restore(as_text(first.save()));
    for (auto& name : taken(second, some - at + 1, 1)) got.push_back(std::move(name));
    EXPECT_EQ(got, expected);
  }
}

// A stop that arrives while a sample is read is noticed on the next call: samples left out before
// that are in no state.
TEST_F(Continued, AStopKeepsNothingThatWasLeftOut) {
  struct hooked_reader final : sample_reader {
    hooked_reader(std::unique_ptr<sample_reader> r, std::function<void()> f,
                  asio::any_io_executor e)
        : reader(std::move(r)), before_each(std::move(f)), executor(std::move(e)) {}
    awaitable<result<std::optional<sample>>> next() override {
      auto out = co_await reader->next();
      before_each();
      co_await asio::post(executor, no_throw);  // the stop arrives
      co_return out;
    }
    std::int64_t offset() const override { return reader->offset(); }
    std::int64_t given() const override { return reader->given(); }
    bool is_broken() const override { return reader->is_broken(); }
    std::unique_ptr<sample_reader> reader;
    std::function<void()> before_each;
    asio::any_io_executor executor;
  };
  struct hooked_source final : sample_source {
    explicit hooked_source(std::function<void()> f) : before_each(std::move(f)) {}
    std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                        const lane_cursor& at) const override {
      return std::make_unique<hooked_reader>(
          std::make_unique<testing::record_reader>(lane, which, at), before_each,
          lane.run.io.executor());
    }
    std::function<void()> before_each;
  };
  std::vector<std::string> keys;
  for (int i = 0; i < 12; ++i) keys.push_back(fmt::format("r{:02}", i));
  store_->put("records", testing::record_file(keys, 50));
  const auto is_wanted = [](const sample& s) { return (s.key.back() - '0') % 3 == 0; };
  std::vector<std::string> expected;
  for (const auto& key : keys) {
    if ((key.back() - '0') % 3 == 0) expected.push_back(key);
  }
  int read = 0;
  for (int stop_at = 1; stop_at <= 12; ++stop_at) {
    SCOPED_TRACE(stop_at);
    loader<sample>* running = nullptr;
    const auto source = std::make_shared<hooked_source>([&] {
      if (++read == stop_at && running != nullptr) running->stop();
    });
    const auto p = interleaved(shards({"memory:records"}, {.lanes = 1}) | read_samples(source) |
                               select(is_wanted));
    read = 0;
    auto first = eng_.run(p);
    running = &first;
    std::vector<std::string> got;
    try {
      while (const auto s = first.next()) got.push_back(s->key);
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::stopped);
    }
    running = nullptr;
    auto second = eng_.run(p);
    second.restore(as_text(first.save()));
    while (const auto s = second.next()) got.push_back(s->key);
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace millrace
