// A sample that is left out is left out as a whole, wherever a state was saved, and whichever run
// resumes it: also while the source waits in its middle, and with other lanes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <semaphore>

#include "engine/coroutines/async.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "millrace/millrace.h"
#include "pipeline/formats/tar_samples.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::tar_builder;

// Stops forever at a given place, as a network may, and reports that it did.
struct stopping_place {
  std::size_t at = 0;
  bool stops = false;
  int failures = 0;  // this many readers end there instead, with a temporary error
  std::binary_semaphore reached{0};
};

class stopping_source final : public byte_source {
 public:
  stopping_source(std::string rest, std::size_t before, stopping_place& where,
                  const asio::any_io_executor& executor)
      : rest_(std::move(rest)), before_(before), where_(where), never_(executor) {}

  awaitable<result<bytes>> read() override {
    const std::string_view left = std::string_view(rest_).substr(given_);
    if (left.empty()) co_return bytes();
    if (given_ == before_ && where_.failures > 0) {
      --where_.failures;
      co_return error(errc::timed_out, "no answer").at("stopping:a").skippable();
    }
    if (given_ == before_ && where_.stops) {
      where_.reached.release();
      never_.expires_at(steady_timer::time_point::max());
      co_await never_.async_wait(no_throw);
    }
    const auto some = left.substr(0, given_ < before_ ? before_ - given_ : left.npos);
    given_ += some.size();
    co_return owned_bytes(std::string(some));
  }

 private:
  std::string rest_;
  std::size_t before_;
  std::size_t given_ = 0;
  stopping_place& where_;
  steady_timer never_;
};

class LeftOut : public ::testing::Test {
 protected:
  LeftOut() {
    set_log_level(log_level::quiet);
    tar_builder other;
    other.file("t0.jpg", "good")
        .file("t0.cls", "0")
        .file("t1.jpg", "good")
        .file("t1.cls", "0")
        .end();
    shards_["b"] = other.str();
    engine_options o;
    o.cpu_threads = 2;
    o.memory_bytes = 256_MiB;
    o.add_sources = [this](source_registry& registry) {
      registry.add("stopping", [this](source_context c, std::string, url where, byte_range range) {
        return open(std::move(c), std::move(where), range);
      });
    };
    engine_.emplace(o);
  }
  ~LeftOut() override { set_log_level(log_level::notice); }

  awaitable<result<std::unique_ptr<byte_source>>> open(source_context c, url where,
                                                       byte_range range) {
    const std::string name = std::move(where.path);
    const std::string& all = shards_.at(name);
    const bool may_stop = name == "a" && range.begin <= place_.at && !range.end;
    const std::size_t before = may_stop ? place_.at - range.begin : all.size();
    co_return std::make_unique<stopping_source>(
        all.substr(range.begin, range.end.value_or(all.size()) - range.begin), before, place_,
        c.io.executor());
  }

  plan<sample> what(int lanes) const {
    return shards({"stopping:a", "stopping:b"}, {.lanes = lanes, .shuffle = false}) |
           untar({.resync = true, .rename = rename_}) | group_by_key() | on_error(skip_errors()) |
           map([](sample s) { return s; }, {.threads = 2});
  }

  static std::string text_of(const sample& s) {
    std::string out = s.key;
    for (const field& f : s.fields) out += " ." + f.extension;
    return out;
  }
  static std::vector<std::string> rest_of(loader<sample>& data) {
    std::vector<std::string> out;
    while (auto s = data.next()) out.push_back(text_of(*s));
    std::ranges::sort(out);
    return out;
  }

  std::vector<std::string> epoch_of(const lane_plan<sample>& p) {
    auto data = engine_->run(p);
    return rest_of(data);
  }

  // The first sample is yielded; the rest comes from a state saved while the source stops at
  // `byte`.
  void check_stopped_at(std::size_t byte, const std::vector<std::string>& expected) {
    for (const int lanes : {1, 2, 3}) {
      place_.at = byte;
      place_.stops = true;
      state saved;
      {
        auto data = engine_->run(what(1));
        ASSERT_TRUE(data.next());
        place_.reached.acquire();
        saved = state::from_json(data.save().to_json()).value();
      }
      place_.stops = false;
      auto data = engine_->run(what(lanes));
      data.restore(saved);
      EXPECT_EQ(rest_of(data), expected) << "stopped at " << byte << ", then " << lanes << " lanes";
    }
  }

  void check(std::string_view begin, std::string_view left_out, std::string_view behind,
             const std::vector<std::string>& expected) {
    shards_["a"] = std::string(begin) + std::string(left_out) + std::string(behind);
    place_.stops = false;
    auto unbroken = engine_->run(what(1));
    ASSERT_TRUE(unbroken.next());
    ASSERT_EQ(rest_of(unbroken), expected);
    // From where the first sample is known to be complete: after the next member.
    const std::size_t last =
        std::min(begin.size() + left_out.size() + 1024, shards_["a"].size() - 512);
    for (std::size_t byte = first_.size() + 1024; byte <= last; byte += 512) {
      check_stopped_at(byte, expected);
      if (HasFailure()) return;
    }
  }

  // The source fails at `byte`. A state saved after any error is resumed without the failure; what
  // came before it and what comes after are the whole epoch.
  void check_failed_at(std::size_t byte, const lane_plan<sample>& p,
                       const std::vector<std::string>& expected) {
    SCOPED_TRACE(byte);
    struct position {
      std::vector<std::string> given;
      state saved;
    };
    std::vector<position> after_errors;
    const auto read = [&](loader<sample>& data, std::vector<std::string> given, bool saves) {
      for (;;) {
        try {
          const auto s = data.next();
          if (!s) return given;
          given.push_back(text_of(*s));
        } catch (const failure& f) {
          if (!f.why().is_skippable()) return given;  // no shard yielded any
          told_ += f.kind() == errc::timed_out ? 1 : 0;
          if (saves)
            after_errors.push_back({given, state::from_json(data.save().to_json()).value()});
        }
      }
    };
    place_.at = byte;
    place_.failures = 1;
    told_ = 0;
    auto failing = engine_->run(p);
    read(failing, {}, true);
    EXPECT_EQ(told_, 1);
    for (const position& from : after_errors) {
      place_.failures = 0;
      auto rest = engine_->run(p);
      rest.restore(from.saved);
      auto all = read(rest, from.given, false);
      std::ranges::sort(all);
      EXPECT_EQ(all, expected);
    }
  }

  // A shuffle's samples are read again, and the source fails once meanwhile.
  void check_read_again(std::size_t byte, std::uint64_t seed,
                        const std::vector<std::string>& expected) {
    SCOPED_TRACE(fmt::format("{}, {}", byte, seed));
    const auto p =
        interleaved(shards({"stopping:a", "stopping:b"}, {.lanes = 1, .shuffle = false}) | untar() |
                    group_by_key() | shuffle({.samples = 100, .seed = seed})) |
        on_error(skip_errors());
    place_.failures = 0;
    auto first = engine_->run(p);
    std::vector<std::string> all{text_of(*first.next())};
    const state saved = state::from_json(first.save().to_json()).value();
    place_.at = byte;
    place_.failures = 1;
    auto second = engine_->run(p);
    second.restore(saved);
    for (auto& s : rest_of(second)) all.push_back(std::move(s));
    std::ranges::sort(all);
    EXPECT_EQ(all, expected);
  }

  void put(std::string shard) {
    place_.stops = false;
    shards_["a"] = std::move(shard);
  }

  int told_ = 0;  // failures of the source
  std::function<std::string(std::string_view)> rename_ = nullptr;
  const std::string first_ = tar_builder().file("s0.cls", "0").file("s0.jpg", "good").str();
  const std::string last_ =
      tar_builder().file("s2.cls", "2").file("s2.jpg", "good").file("s3.cls", "3").end().str();

 private:
  std::map<std::string, std::string> shards_;
  stopping_place place_;
  std::optional<engine> engine_;
};

TEST_F(LeftOut, OfTwoFieldsOfOneExtension) {
  const auto twice = tar_builder()
                         .file("s1.jpg", "first")
                         .file("s1.jpg", "second")
                         .file("s1.cls", "1")
                         .file("s1.json", "{}");
  check(first_, twice.str(), last_, {"s2 .cls .jpg", "s3 .cls", "t0 .jpg .cls", "t1 .jpg .cls"});
}

TEST_F(LeftOut, InFrontOfASourceThatFails) {
  const std::string begun = tar_builder().file("s1.jpg", "first").str();
  const auto rest =
      tar_builder().file("s1.jpg", "second").file("s1.cls", "1").file("s1.json", "{}");
  put(first_ + begun + rest.str() + last_);
  const std::vector<std::string> expected{"s0 .cls .jpg", "s2 .cls .jpg", "s3 .cls", "t0 .jpg .cls",
                                          "t1 .jpg .cls"};
  const auto list = shards({"stopping:a", "stopping:b"}, {.lanes = 1, .shuffle = false});
  const std::size_t end = first_.size() + begun.size() + rest.str().size();
  for (std::size_t byte = 512; byte <= end + last_.size() - 512; byte += 512) {
    check_failed_at(byte, list | untar() | group_by_key(), expected);
    check_failed_at(byte, list | read_samples(tar_samples()), expected);
  }
  // Within it.
  for (std::size_t byte = first_.size() + 512; byte < end; byte += 512) {
    for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) check_read_again(byte, seed, expected);
  }
}

TEST_F(LeftOut, FilesWithoutAKeyAmongTheSamplesOfAnotherLane) {
  tar_builder t;
  for (int i = 0; i < 8; ++i) {
    t.file(fmt::format("k{}.jpg", i), "x");
    if (i % 2 == 0) t.file("README", "x");
  }
  const std::string shard = t.end().str();
  put(shard);
  const auto index = std::make_shared<const shard_index>(shard_index{
      .shards = {{.url = "stopping:a", .samples = 8, .bytes = std::ssize(shard), .blocks = {}}}});
  for (const int rank : {0, 1}) {
    const auto p = shards({"stopping:a"}, {.rank = rank,
                                           .world_size = 2,
                                           .lanes = 2,
                                           .mode = epoch_mode::equal,
                                           .shuffle = false,
                                           .index = index}) |
                   untar() | group_by_key();
    const auto expected = epoch_of(p);
    ASSERT_EQ(expected.size(), 4U);
    for (std::size_t byte = 512; byte < 4096; byte += 512) check_failed_at(byte, p, expected);
  }
}

TEST_F(LeftOut, OfAMemberThatIsRefused) {
  const std::string sparse = tar_builder::header("s1.npy", 0, 'S');
  for (const bool is_first : {false, true}) {
    SCOPED_TRACE(is_first);
    tar_builder refused;
    if (!is_first) refused.file("s1.jpg", "good");
    refused.raw(sparse).file("s1.cls", "1").raw(tar_builder::header("s1.png", 0, 'S'));
    refused.file("s1.json", "{}");
    check(first_, refused.str(), last_,
          {"s2 .cls .jpg", "s3 .cls", "t0 .jpg .cls", "t1 .jpg .cls"});
  }
}

// It belongs to no sample, and ends none.
TEST_F(LeftOut, ButNotForAMemberWithoutAKey) {
  const std::string sparse = tar_builder::header("none", 0, 'S') + tar_builder::header("", 0, 'S');
  const auto twice = tar_builder()
                         .file("s1.jpg", "first")
                         .file("s1.jpg", "second")
                         .raw(sparse)
                         .file("s1.cls", "1");
  check(first_, twice.str(), last_, {"s2 .cls .jpg", "s3 .cls", "t0 .jpg .cls", "t1 .jpg .cls"});
  const auto good = tar_builder().file("s1.jpg", "good").raw(sparse).file("s1.cls", "1");
  check(first_, good.str(), last_,
        {"s1 .jpg .cls", "s2 .cls .jpg", "s3 .cls", "t0 .jpg .cls", "t1 .jpg .cls"});
}

TEST_F(LeftOut, ByTheNamesThatMembersAreToHave) {
  rename_ = [](std::string_view name) { return "new-" + std::string(name); };
  // The data read of the sample belong to the same sample as the cut member.
  const auto cut = tar_builder().file("s1.jpg", "good").raw(tar_builder::header("s1.cls", 5000));
  check(first_, cut.str(), std::string(3072, 'x'), {"new-t0 .jpg .cls", "new-t1 .jpg .cls"});
}

// The data read of it may be complete or not.
TEST_F(LeftOut, InFrontOfACutBetweenItsMembers) {
  const std::string begun = tar_builder().file("s1.jpg", "good").str();
  const std::string passed_over = tar_builder::header("__meta__/x.json", 5000);
  for (const bool renames : {false, true}) {
    SCOPED_TRACE(renames);
    const std::string before = renames ? "new-" : "";
    rename_ = renames ? [](std::string_view name) { return "new-" + std::string(name); }
                      : std::function<std::string(std::string_view)>();
    const std::vector<std::string> others{before + "t0 .jpg .cls", before + "t1 .jpg .cls"};
    check(first_, begun.substr(0, 700), "", others);  // within the padding of its last block
    check(first_, begun + passed_over, std::string(3072, 'x'), others);
  }
}

// The sample before damage may be incomplete. What follows may be half a sample, unless it has all
// fields of the last whole one.
TEST_F(LeftOut, AroundDamage) {
  const std::string begin = first_ + tar_builder().file("x.cls", "0").file("x.jpg", "good").str();
  const std::string damage(1024, 'x');
  const auto half = tar_builder().file("s1.json", "{}");
  check(begin, damage + half.str(), last_,
        {"s2 .cls .jpg", "s3 .cls", "t0 .jpg .cls", "t1 .jpg .cls"});
  const auto whole = tar_builder().file("s1.cls", "1").file("s1.jpg", "good");
  check(begin, damage + whole.str(), last_,
        {"s1 .cls .jpg", "s2 .cls .jpg", "s3 .cls", "t0 .jpg .cls", "t1 .jpg .cls"});
}

}  // namespace
}  // namespace millrace
