// Chains of stages in any order, over shards some of which are broken. Saved after any item and
// resumed, a chain yields the same items in the same epochs, the same errors and the same skips.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/base/random.h"
#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/state/merged.h"
#include "pipeline/state/records.h"
#include "tests/support/loaders.h"
#include "tests/support/seeds.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::same;
using testing::tar_builder;
using testing::with_memory_store;

std::string name_of(const sample& s) {
  std::string out = s.key;
  for (const field& f : s.fields) out += fmt::format(" {}:{}", f.extension, f.data.size());
  return out;
}
std::string name_of(const group_of<sample>& g) {
  std::string out;
  for (const sample& s : g) out += fmt::format("[{}]", name_of(s));
  return out;
}

constexpr std::string_view error_mark = "error: ";

// The next item, "end", or the error in its place.
template <class T>
std::string next_of(loader<T>& data) {
  try {
    const auto item = data.next();
    return item ? name_of(*item) : "end";
  } catch (const failure& f) {
    // Of several failures, the run ends with the first one of that run.
    if (!f.why().is_skippable()) return "error: final";
    return fmt::format("{}{}", error_mark, f.what());
  }
}

// Everything the run yields, without the ends after that of the last epoch with anything in it.
struct course {
  std::vector<std::string> steps;
  std::optional<std::int64_t> skipped;  // null: unknown
};

template <class T>
void run_on(loader<T>& data, course& c) {
  constexpr int enough_ends = 4;
  constexpr std::size_t most = 3000;
  for (int ends = 0; ends < enough_ends && c.steps.size() < most;) {
    c.steps.push_back(next_of(data));
    if (c.steps.back().starts_with("error: final")) break;
    ends = c.steps.back() == "end" ? ends + 1 : 0;
  }
  while (!c.steps.empty() && c.steps.back() == "end") c.steps.pop_back();
  // Rates, and the guess of what unreadable shards lack, depend on how many samples passed in one
  // run.
  const auto counts = data.counts();
  const bool guesses = std::ranges::any_of(counts.skipped, [](const auto& s) {
    return s.first == errc::not_found || s.first == errc::truncated;
  });
  const state last = data.save();
  std::int64_t skipped = 0;
  for (const auto& [name, values] : last.records()) {
    if (name.starts_with(skipped_record)) skipped += values.front();
  }
  if (!guesses) c.skipped = skipped;
}

// Waits until the stages are as far ahead as they can be: the state of an item no longer changes.
template <class T>
state settled(loader<T>& data) {
  state last = data.save();
  for (int unchanged = 0; unchanged < 100;) {
    state now = data.save();
    unchanged = now == last ? unchanged + 1 : 0;
    last = std::move(now);
  }
  return last;
}

template <class T>
course cut_at(engine& eng, const plan<T>& p, const std::vector<std::size_t>& cuts) {
  course out;
  std::optional<state> saved;
  for (const std::size_t cut : cuts) {
    auto data = eng.run(p);
    if (saved) data.restore(*saved);
    while (out.steps.size() < cut) out.steps.push_back(next_of(data));
    saved = state::from_json(settled(data).to_json()).value();
    // The position is the one before the failure.
    if (!out.steps.empty() && out.steps.back().starts_with(error_mark)) out.steps.pop_back();
  }
  auto data = eng.run(p);
  if (saved) data.restore(*saved);
  run_on(data, out);
  return out;
}

std::string difference(const course& whole, const course& cut) {
  const auto at = std::ranges::mismatch(whole.steps, cut.steps);
  const auto few = [](auto from, auto end) {
    return fmt::format("{}", fmt::join(std::vector(from, end - from > 6 ? from + 6 : end), " | "));
  };
  if (at.in1 != whole.steps.end() || at.in2 != cut.steps.end()) {
    return fmt::format("from step {} on: {}\nin place of {}", at.in1 - whole.steps.begin(),
                       few(at.in2, cut.steps.end()), few(at.in1, whole.steps.end()));
  }
  if (whole.skipped && cut.skipped && *whole.skipped != *cut.skipped) {
    return fmt::format("{} skipped in place of {}", *cut.skipped, *whole.skipped);
  }
  return {};
}

// Errors overtake items that wait for others of their group. After a cut within a group, groups end
// elsewhere, so errors are compared separately, and completely.
course errors_apart(course c) {
  std::vector<std::string> errors;
  for (const std::string& step : c.steps) {
    if (step.starts_with(error_mark)) errors.push_back(step);
  }
  std::erase_if(c.steps, [](const std::string& step) { return step.starts_with(error_mark); });
  std::ranges::sort(errors);
  c.steps.insert(c.steps.end(), errors.begin(), errors.end());
  return c;
}

// Cuts after every item.
template <class T>
void expect_exact(engine& eng, const plan<T>& p) {
  const course whole = cut_at(eng, p, {});
  ASSERT_GT(whole.steps.size(), 1U);
  for (std::size_t cut = 0; cut < whole.steps.size(); ++cut) {
    if (!testing::is_taken(cut)) continue;
    ASSERT_EQ(difference(whole, cut_at(eng, p, {cut})), "") << "cut after " << cut;
  }
}

class Chains : public ::testing::Test {
 protected:
  Chains() {
    set_log_level(log_level::quiet);
    for (int i = 0; i < 3; ++i) {
      store_->put(fmt::format("p{}", i), testing::text_shard(100 * i, 5, 700));
    }
  }
  ~Chains() override { set_log_level(log_level::notice); }

  static plan<sample> source(std::int64_t epochs = 3, int lanes = 2) {
    return interleaved(shards({"memory:p0", "memory:p1", "memory:p2"},
                              {.seed = 1, .lanes = lanes, .epochs = epochs}) |
                       untar() | group_by_key());
  }
  static std::vector<std::string> keys_in(const course& c) {
    std::vector<std::string> out;
    for (const std::string& step : c.steps) out.push_back(step.substr(0, step.find(' ')));
    return out;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(4'000);
  engine engine_{with_memory_store(store_)};
};

TEST_F(Chains, ASliceKeepsItsCountWhereALaterStageHoldsTheEnd) {
  expect_exact(engine_, source() | slice(0, 4) | map(same, {.threads = 2}) | batched(3));
  expect_exact(engine_, source() | slice(2, 7) | map(same, {.threads = 2}) | batched(3));
  expect_exact(engine_, source() | slice(0, 11) | slice(1, 9, 2) | map(same, {.threads = 2}) |
                            map(same, {.threads = 1}) | batched(2));
}

TEST_F(Chains, EndsHeldComeAgainAfterTheItemsThatTheyCameAfter) {
  const map_options two{.threads = 2};
  expect_exact(engine_, source(1) | epochs_of(2) | map(same, two) | map(same, two) | batched(3));
  expect_exact(engine_, source() | repeated(2) | map(same, two) | map(same, two) | batched(3));
  expect_exact(engine_, source() | epochs_of(4) | batched(3) | unbatched() | map(same, two));
  expect_exact(engine_, source() | epochs_of(4) | map(same, two) | repeated(2) | map(same, two) |
                            epochs_of(5) | map(same, two) | batched(2));
}

TEST_F(Chains, GroupsThatLaterStagesHoldAreCountedOnce) {
  const auto same_group = [](group_of<sample> g) { return g; };
  const map_options two{.threads = 2};
  expect_exact(engine_, source() | batched(3) | epochs_of(2) | map(same_group, two));
  // The last group of an epoch is smaller.
  expect_exact(engine_, source() | batched(4) | epochs_of(2) | map(same_group, two));
  expect_exact(engine_, source() | slice(0, 7) | batched(3) | repeated(2) | map(same_group, two) |
                            map(same_group, two));
  expect_exact(engine_, source() | batched(2) | slice(1, 5, 2) | map(same_group, two) |
                            map(same_group, two));
}

// A rank's state counts the ends that the rank held.
TEST_F(Chains, AMergedStateHasTheEndsThatWereHeld) {
  const auto p = source() | epochs_of(4) | map(same, {.threads = 2}) | batched(3);
  const course whole = cut_at(engine_, p, {});
  for (std::size_t cut = 0; cut < whole.steps.size(); ++cut) {
    course out;
    auto first = engine_.run(p);
    while (out.steps.size() < cut) out.steps.push_back(next_of(first));
    const state saved = settled(first);
    auto second = engine_.run(p);
    second.restore(merged(std::span(&saved, 1)));
    run_on(second, out);
    ASSERT_EQ(difference(whole, out), "") << "cut after " << cut;
  }
}

TEST_F(Chains, TwoPoliciesCountEachItsOwn) {
  const auto without = [](char digit) {
    return [digit](sample s) -> result<sample> {
      if (s.key.back() != digit) return s;
      return error(errc::bad_image, "unwanted").skippable();
    };
  };
  expect_exact(engine_, source() | map(without('1')) | on_error(skip_up_to(9)) |
                            map(without('2'), {.threads = 2}) | map(without('3')) |
                            on_error(skip_up_to(18)) | batched(2));
}

// A part that failed is asked again before the mix draws: an error is not repeated.
TEST_F(Chains, AMixGoesOnAfterAnErrorOfAPartAsIfItHadNotStopped) {
  store_->put("none", "");
  const shard_list_options o{.seed = 1, .lanes = 1, .shuffle = false};
  const auto samples = [&](std::vector<std::string> urls) {
    return shards(std::move(urls), o) | untar() | group_by_key();
  };
  for (const auto by : {mix_options::order::round_robin, mix_options::order::random}) {
    const auto mixed = interleaved(mix({{samples({"memory:none", "memory:missing", "memory:p0"})},
                                        {samples({"memory:p1", "memory:p2"})}},
                                       {.by = by}));
    expect_exact(engine_, mixed | on_error(skip_up_to(12)));
    expect_exact(engine_, mixed);
  }
}

// In a mix, lanes without shards of one source hold samples of the others.
TEST_F(Chains, AMixWithFewerShardsThanLanesResumesWithinItsBudget) {
  const shard_list_options o{.seed = 1, .lanes = 3};
  const auto mixed =
      interleaved(
          mix({{shards({"memory:p0"}, o) | untar() | group_by_key()},
               {shards({"memory:p1", "memory:p2", "memory:p0"}, o) | untar() | group_by_key()}})) |
      batched(4) | unbatched();
  // With the least memory that the plan accepts, a lane reserves none for a source of which it has
  // no shard.
  for (std::size_t budget = 1_MiB; budget <= 64_MiB; budget += 256_KiB) {
    engine small(with_memory_store(store_, 1, budget));
    try {
      small.run(mixed);
    } catch (const failure& f) {
      ASSERT_EQ(f.kind(), errc::no_memory) << f.what();
      continue;
    }
    return expect_exact(small, mixed);
  }
  FAIL() << "no budget is enough";
}

// Archives of samples with several fields, complete and damaged.
std::string archive_of(int first, const std::vector<std::string>& extensions) {
  tar_builder t;
  for (int k = 0; k < 4; ++k) {
    for (const std::string& e : extensions) {
      t.file(fmt::format("s{:06}.{}", first + k, e),
             std::string(static_cast<std::size_t>(30 + k), e[0]));
    }
  }
  return t.end().str();
}
std::string with_broken_header(std::string tar, std::size_t member) {
  std::ranges::fill(tar.begin() + static_cast<std::ptrdiff_t>(member * 1024),
                    tar.begin() + static_cast<std::ptrdiff_t>(member * 1024 + 512), 'x');
  return tar;
}

TEST_F(Chains, AShardThatBreaksMakesNoHalfSamplesOfTheNext) {
  store_->put("cut", archive_of(0, {"txt", "cls"}).substr(0, 4 * 1024 + 600));
  store_->put("whole", archive_of(100, {"txt"}));
  const auto p =
      interleaved(shards({"memory:cut", "memory:whole"}, {.lanes = 1, .shuffle = false}) |
                  untar({.resync = true}) | group_by_key());
  const course all = cut_at(engine_, p | on_error(skip_errors()), {});
  EXPECT_EQ(keys_in(all), (std::vector<std::string>{"s000000", "s000001", "s000100", "s000101",
                                                    "s000102", "s000103"}));
}

TEST_F(Chains, HalfSamplesAfterDamageAreToldAfterAResumeToo) {
  for (std::size_t member = 1; member < 8; ++member) {
    store_->put("damaged", with_broken_header(archive_of(0, {"txt", "cls"}), member));
    store_->put("whole", archive_of(100, {"txt"}));
    const auto p =
        interleaved(shards({"memory:damaged", "memory:whole"}, {.lanes = 1, .shuffle = false}) |
                    untar({.resync = true}) | group_by_key());
    expect_exact(engine_, p);
    expect_exact(engine_, p | on_error(skip_errors()));
    expect_exact(engine_, p | on_error(skip_errors()) | map(same, {.threads = 2}) | batched(3));
  }
}

// Plans drawn at random.
class drawn_chain {
 public:
  drawn_chain(std::uint64_t seed, memory_store& store)
      : random_(seed, purpose::fake_data), store_(store) {
    lanes_ = pick(1, 4);
    epochs_ = pick(1, 3);
    resync_ = chance(2);
    broken_ = chance(2);
    held_ = chance(2) ? 0 : static_cast<std::size_t>(pick(1, 12));
    seed_ = static_cast<std::uint64_t>(pick(0, 1000));
    samples_ = source();
    for (int left = pick(1, 5); left > 0; --left) add_stage();
    if (broken_ && !skips_ && chance(2)) add_policy();
  }

  const plan<sample>& samples() const { return samples_; }
  const std::string& text() const { return text_; }
  bool unbatches() const { return text_.find("unbatched") != std::string::npos; }
  int pick(int least, int most) {
    return least + static_cast<int>(random_.below(static_cast<std::uint32_t>(most - least + 1)));
  }
  bool chance(int of) { return pick(1, of) == 1; }

 private:
  std::string shard() {
    const std::string name = fmt::format("r{}", shards_);
    const int first = 100 * shards_++;
    static const std::vector<std::vector<std::string>> kinds = {
        {"txt"}, {"txt", "cls"}, {"a", "b", "c"}};
    const auto& fields = kinds[static_cast<std::size_t>(pick(0, 2))];
    std::string tar = archive_of(first, fields);
    std::string how = "whole";
    if (broken_ && chance(2)) {
      const int what = pick(0, 4);
      if (what == 0) tar = tar.substr(0, static_cast<std::size_t>(pick(1, 3000)));
      if (what == 1) tar.clear();
      if (what == 2) tar = with_broken_header(tar, static_cast<std::size_t>(pick(0, 3)));
      if (what == 3) tar = tar_builder().end().str();
      if (what == 4) return text_ += " missing", "memory:missing";
      how = fmt::format("broken {}", what);
    }
    text_ += fmt::format(" {}({} fields, {})", name, fields.size(), how);
    store_.put(name, std::move(tar));
    return "memory:" + name;
  }

  lane_plan<sample> list() {
    std::vector<std::string> urls;
    for (int n = pick(1, 4); n > 0; --n) urls.push_back(shard());
    auto out = shards(urls, {.seed = seed_, .lanes = lanes_, .epochs = epochs_}) |
               untar({.resync = resync_}) | group_by_key();
    if (chance(3)) {
      text_ += " failing";
      out = out | sample_stage{"failing", [](sample s) -> result<std::optional<sample>> {
                                 if (s.key.back() != '3') return std::optional(std::move(s));
                                 return error(errc::bad_image, "unwanted").skippable();
                               }};
    }
    if (held_ > 0) out = out | shuffle({.samples = held_, .seed = seed_});
    return out;
  }

  plan<sample> source() {
    text_ = fmt::format("{} lanes, {} epochs, {} shuffled{}:", lanes_, epochs_, held_,
                        resync_ ? ", resync" : "");
    if (chance(2)) return interleaved(list());
    std::vector<mix_source> parts;
    for (int n = pick(2, 3); n > 0; --n) {
      text_ += " part";
      auto samples = list();
      parts.push_back({std::move(samples), static_cast<double>(pick(1, 3))});
    }
    const bool in_turn = chance(2);
    text_ += in_turn ? " in turn" : " by weight";
    return interleaved(mix(std::move(parts), {.seed = seed_,
                                              .by = in_turn ? mix_options::order::round_robin
                                                            : mix_options::order::random}));
  }

  void add(plan<sample> p, const std::string& what) {
    samples_ = std::move(p);
    text_ += " | " + what;
  }
  void add_policy() {
    skips_ = true;
    add(samples_ | on_error(skip_errors()), "on_error");
  }

  void add_stage() {
    const int n = pick(1, 9);
    const int threads = pick(1, 3);
    switch (pick(0, 12)) {
      case 0:
      case 10:
        return add(samples_ | slice(n / 4, n / 4 + n, 1 + n % 2), fmt::format("slice {}", n));
      case 1:
        return add(samples_ | epochs_of(n), fmt::format("epochs_of {}", n));
      case 2:
        return add(samples_ | repeated(1 + n % 3), fmt::format("repeated {}", 1 + n % 3));
      case 3:
      case 4:
      case 11:
        return add(samples_ | map(same, {.threads = threads}), fmt::format("map {}", threads));
      case 5:
        return add(samples_ | batched(static_cast<std::size_t>(n)) | unbatched(),
                   fmt::format("batched {} | unbatched", n));
      case 6:
        return add(samples_ | prefetch(threads), fmt::format("prefetch {}", threads));
      case 7:
        return add(samples_ | select([](const sample& s) { return s.key.back() != '1'; }),
                   "select");
      case 8:
        return add(samples_ | map(
                                  [](sample s) -> result<sample> {
                                    if (s.key.back() != '2') return s;
                                    return error(errc::bad_image, "unwanted").skippable();
                                  },
                                  {.threads = threads - 1}),
                   fmt::format("failing map {}", threads - 1));
      default:
        if (!skips_) add_policy();
    }
  }

  random_stream random_;
  memory_store& store_;
  int shards_ = 0;
  int lanes_ = 1;
  std::int64_t epochs_ = 1;
  bool resync_ = false;
  bool broken_ = false;
  bool skips_ = false;
  std::size_t held_ = 0;
  std::uint64_t seed_ = 0;
  plan<sample> samples_;
  std::string text_;
};

class RandomChains : public Chains {
 protected:
  template <class T>
  void expect_exact_where_cut(drawn_chain& drawn, const plan<T>& p, const std::string& what) {
    const course whole = cut_at(engine_, p, {});
    // Nothing follows an error that ends a run.
    const bool ends_early = !whole.steps.empty() && whole.steps.back().starts_with("error: final");
    const int length = static_cast<int>(whole.steps.size()) - (ends_early ? 1 : 0);
    // Prefers cuts before ends, which stages then hold.
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < whole.steps.size(); ++i) {
      if (whole.steps[i] == "end") ends.push_back(i);
    }
    const auto anywhere = [&]() -> std::size_t {
      if (ends.empty() || drawn.chance(2)) return static_cast<std::size_t>(drawn.pick(0, length));
      return ends[static_cast<std::size_t>(drawn.pick(0, static_cast<int>(ends.size()) - 1))];
    };
    for (int cuts = 0; cuts < 6; ++cuts) {
      std::vector<std::size_t> at{anywhere()};
      if (drawn.chance(2)) at.push_back(anywhere());
      std::ranges::sort(at);
      const course cut = cut_at(engine_, p, at);
      ASSERT_EQ(drawn.unbatches() ? difference(errors_apart(whole), errors_apart(cut))
                                  : difference(whole, cut),
                "")
          << what << "\ncut after " << fmt::format("{} of {}", fmt::join(at, ", "), length);
    }
  }
};

TEST_F(RandomChains, CutAnywhereGiveTheSameEpochs) {
  for (const std::uint64_t seed : testing::seeds(60)) {
    drawn_chain drawn(seed, *store_);
    const std::string replay = fmt::format(
        "replay: TEST_SEED={} build/release/bin/pipeline_tests "
        "--gtest_filter=RandomChains.*\n{}",
        seed, drawn.text());
    if (drawn.chance(2)) {
      expect_exact_where_cut(drawn, drawn.samples(), replay);
    } else {
      const int size = drawn.pick(1, 4);
      expect_exact_where_cut(drawn, drawn.samples() | batched(static_cast<std::size_t>(size)),
                             fmt::format("{} | batched {}", replay, size));
    }
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace millrace
