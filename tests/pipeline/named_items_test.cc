#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/millrace.h"
#include "tests/support/tar_builder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using testing::with_memory_store;

// An error of user code names the item by key and URL, whether it is returned or thrown, wherever
// that code runs, and so does the report of skipped items.

constexpr std::string_view bad_key = "s001003";

enum class told { returned, thrown };

// Returns the item, or an error without a name.
template <class T>
result<std::optional<T>> told_or_bad(T item, told how, std::string_view bad) {
  if (item.key != bad) return std::optional<T>(std::move(item));
  const auto why = error(errc::bad_field, "it is bad").skippable();
  if (how == told::thrown) throw failure(why);
  return why;
}

class checking_stage final : public detail::passing<sample> {
 public:
  checking_stage(std::unique_ptr<stream<sample>> items, told how)
      : passing(std::move(items)), how_(how) {}
  awaitable<outcome> next() override {
    auto item = co_await items_->next();
    if (!item || !*item) co_return item;
    co_return told_or_bad(std::move(**item), how_, bad_key);
  }

 private:
  told how_;
};

// Three samples a shard; the second is bad.
class checking_reader final : public sample_reader {
 public:
  checking_reader(std::int64_t from, told how) : at_(from), how_(how) {}
  awaitable<result<std::optional<sample>>> next() override {
    if (at_ == 3) co_return std::optional<sample>();
    sample s;
    s.key = fmt::format("r{}", at_);
    s.where.offset = at_++;
    co_return told_or_bad(std::move(s), how_, "r1");
  }
  std::int64_t offset() const override { return at_; }
  std::int64_t given() const override { return at_; }
  bool is_broken() const override { return false; }

 private:
  std::int64_t at_;
  told how_;
};

class checking_format final : public sample_source {
 public:
  explicit checking_format(told how, bool keeps = false) : how_(how), keeps_(keeps) {}
  std::unique_ptr<sample_reader> open(lane_context& /*lane*/, const shard_ref& /*which*/,
                                      const lane_cursor& at) const override {
    return std::make_unique<checking_reader>(at.offset, how_);
  }
  bool keeps_bounds() const override { return keeps_; }

 private:
  told how_;
  bool keeps_;
};

class NamedItems : public testing::text_shards {
 protected:
  template <class T>
  void expect_named(const plan<T>& what, const std::string& key, const std::string& url) {
    auto data = eng_.run(what);
    try {
      while (data.next()) {
      }
      ADD_FAILURE() << "nothing failed";
    } catch (const failure& f) {
      EXPECT_EQ(f.why().sample_key(), key) << f.what();
      EXPECT_EQ(f.why().where(), url) << f.what();
    }
    const testing::temporary_folder folder;
    const std::string report = folder / "skipped.jsonl";
    auto skipping =
        eng_.run(what | on_error({.most_skipped = 100, .report = report}) | prefetch(2));
    while (skipping.next()) {
    }
    std::ifstream in(report);
    std::string line;
    ASSERT_TRUE(std::getline(in, line));
    const auto told = nlohmann::json::parse(line);
    EXPECT_EQ(told.at("key"), key) << line;
    EXPECT_EQ(told.at("url"), url) << line;
  }
  template <class T>
  void expect_named(const plan<T>& what) {
    expect_named(what, std::string(bad_key), "memory:t1");
  }
  static lane_plan<sample> head() { return shards(urls(), {.seed = 1}) | untar() | group_by_key(); }

  engine eng_{with_memory_store(store_, 3)};
};

class HowTold : public NamedItems, public ::testing::WithParamInterface<told> {};

TEST_P(HowTold, ByAFunction) {
  const auto check = [how = GetParam()](sample s) {
    return told_or_bad(std::move(s), how, bad_key);
  };
  for (const map_options how : {map_options{}, map_options{.threads = 1}, map_options{.threads = 3},
                                map_options{.threads = 3, .ordered = false}}) {
    expect_named(interleaved(head()) | map(check, how));
    expect_named(interleaved(head() | shuffle({.samples = 30})) | prefetch(3) | map(check, how));
  }
}

TEST_P(HowTold, ByAStage) {
  const auto own = [how = GetParam()](auto&, std::unique_ptr<stream<sample>> samples) {
    return std::make_unique<checking_stage>(std::move(samples), how);
  };
  const lane_stage<sample, sample> in_lane{.name = "own", .wrap = own, .unchanged = true};
  const stage<sample, sample> after{"own", own};
  expect_named(interleaved(head() | in_lane));
  expect_named(interleaved(head() | in_lane | shuffle({.samples = 30})));
  expect_named(interleaved(head()) | after);
  expect_named(interleaved(head()) | prefetch(3) | after |
               map([](sample s) { return s; }, {.threads = 3}));
}

// Only the reader knows which sample it could not read; the shard is known.
TEST_P(HowTold, ByAFormat) {
  const auto data = shards({"memory:t1"}, {.lanes = 1, .shuffle = false}) |
                    read_samples(std::make_shared<checking_format>(GetParam()));
  expect_named(interleaved(data), "", "memory:t1");
  const auto keeps = std::make_shared<checking_format>(GetParam(), true);
  expect_named(interleaved(shards({"memory:t1"}) | read_samples(keeps)), "", "memory:t1");
}

TEST_P(HowTold, OfAnImage) {
  const testing::temporary_folder folder;
  const std::string path = folder / "f.tar";
  write_fake_shards({path}, {.samples = 10, .classes = 4, .size = 40});
  const auto images = shards({path}, {.shuffle = false}) | untar() | group_by_key() |
                      decode_jpeg({.size = 32, .train = false});
  auto data = eng_.run(images);
  for (int i = 0; i < 4; ++i) data.next();
  const std::string key = data.next()->key;
  for (const int threads : {0, 2}) {
    expect_named(images | map([&, how = GetParam()](image i) { return told_or_bad(i, how, key); },
                              {.threads = threads}),
                 key, path);
  }
}

INSTANTIATE_TEST_SUITE_P(Both, HowTold, ::testing::Values(told::returned, told::thrown));

// Samples held in a state are read again, through the functions of their lane: one that fails is
// reported once, with its name, whichever stage held it.
TEST_F(NamedItems, ASampleThatIsReadAgainIsNamed) {
  for (const bool skippable : {true, false}) {
    for (const bool shuffled : {true, false}) {
      const auto bad = std::make_shared<std::string>();
      const auto front = head() | select([bad, skippable](const sample& s) {
                           if (s.key != *bad) return true;
                           if (!skippable) throw std::runtime_error("on fire");
                           throw failure(error(errc::bad_label, "on fire").skippable());
                         });
      const auto p = (shuffled ? interleaved(front | shuffle({.samples = 40, .seed = 1}))
                               : interleaved(front) | batched(20) | unbatched()) |
                     on_error(skip_up_to(1));
      auto whole = eng_.run(p);
      for (int i = 0; i < 3; ++i) whole.next();
      const state at = whole.save();
      const std::string key = whole.next()->key;  // held then, by most shuffles
      std::size_t left = 0;
      while (whole.next()) ++left;
      *bad = key;
      auto resumed = eng_.run(p);
      resumed.restore(at);
      std::size_t got = 0;
      std::optional<error> why;
      try {
        while (resumed.next()) ++got;
      } catch (const failure& f) {
        why = f.why();
      }
      ASSERT_EQ(why.has_value(), !skippable);
      EXPECT_EQ(resumed.counts().skipped_in_all(), skippable ? 1U : 0U);
      if (skippable) EXPECT_EQ(got, left);
      if (why) EXPECT_EQ(why->sample_key(), key) << why->message();
      if (why) EXPECT_TRUE(why->what().ends_with(" threw std::runtime_error: on fire"));
    }
  }
}

// An error that names another sample is left unchanged.
TEST_F(NamedItems, AnErrorOfAnotherItemIsLeftAsItIs) {
  class of_another final : public detail::passing<sample> {
   public:
    using passing::passing;
    awaitable<outcome> next() override {
      auto item = co_await items_->next();
      if (item && *item && (*item)->key == bad_key) {
        co_return error(errc::bad_field, "an earlier one is bad").key("earlier");
      }
      co_return item;
    }
  };
  const stage<sample, sample> own{"own", [](run_context&, std::unique_ptr<stream<sample>> from) {
                                    return std::make_unique<of_another>(std::move(from));
                                  }};
  auto data = eng_.run(interleaved(head()) | own);
  try {
    while (data.next()) {
    }
    ADD_FAILURE() << "nothing failed";
  } catch (const failure& f) {
    EXPECT_EQ(f.why().sample_key(), "earlier");
    EXPECT_EQ(f.why().where(), "");
  }
}

TEST_F(NamedItems, KeysOfControlBytesAreLoggedInOneLineEach) {
  const auto store = std::make_shared<memory_store>(5'000);
  store->put("odd", testing::tar_builder().file("a\x1b[2J\nb.txt", "x").end().str());
  testing::temporary_folder folder;
  engine eng(with_memory_store(store));
  auto data = eng.run(interleaved(shards({"memory:odd"}, {.lanes = 1}) | untar() | group_by_key() |
                                  log_keys(folder / "keys")));
  for (const sample& s : data) EXPECT_EQ(s.key, "a\x1b[2J\nb");
  std::ifstream in(folder / "keys");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(std::ranges::count(text, '\n'), 1);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("a\\x1b[2J\\x0ab"), std::string::npos) << text;
}

}  // namespace
}  // namespace millrace
