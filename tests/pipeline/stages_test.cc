#include "pipeline/stages/map.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <set>
#include <thread>

#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using testing::key_of;
using testing::names_of;
using testing::same;
using testing::text_shard;
using testing::with_memory_store;

class Stages : public ::testing::Test {
 protected:
  Stages() {
    for (int i = 0; i < 4; ++i) {
      store_->put("t" + std::to_string(i), text_shard(i * 100, 11 + i, 300));
    }
  }
  lane_plan<sample> lanes(std::int64_t epochs = 2) const {
    return shards({"memory:t0", "memory:t1", "memory:t2", "memory:t3"},
                  {.seed = 1, .lanes = 2, .epochs = epochs}) |
           untar() | group_by_key();
  }
  static constexpr std::size_t all = 11 + 12 + 13 + 14;

  template <class P, class F>
  void expect_resumable(const P& plan, F name, std::size_t step = 3) {
    testing::expect_resumable(engine_, plan, name, step);
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(5'000);
  engine engine_{with_memory_store(store_, 3)};
};

TEST_F(Stages, MapInOrderOnTheIoThreadAndInThePool) {
  const auto renamed = [](sample s) {
    s.key += "!";
    return s;
  };
  std::set<std::vector<std::string>> outcomes;
  for (const int threads : {0, 1, 3}) {
    auto data = engine_.run(lanes() | map(renamed, {.threads = threads}));
    outcomes.insert(names_of(data, key_of));
  }
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes.begin()->size(), 2 * all + 2);
  EXPECT_TRUE(outcomes.begin()->front().ends_with("!"));
  expect_resumable(lanes() | map(renamed, {.threads = 3}), key_of);
}

TEST_F(Stages, MapByArrivalGivesEachItemOnceWithinItsEpoch) {
  auto data =
      engine_.run(lanes() | map([](sample s) { return s; }, {.threads = 3, .ordered = false}));
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<std::string> keys;
    while (auto s = data.next()) keys.insert(s->key);
    EXPECT_EQ(keys.size(), all);
  }
}

TEST_F(Stages, MapCallsItsFunctionOnNoMoreThreadsThanAreAskedFor) {
  engine wide(with_memory_store(store_, 8));
  for (const int threads : {1, 2, 3}) {
    std::atomic<int> inside = 0;
    std::atomic<int> most = 0;
    const auto counting = [&](sample s) {
      const int now = ++inside;
      for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
      }
      for (int i = 0; i < 20; ++i) std::this_thread::yield();
      --inside;
      return s;
    };
    auto data = wide.run(lanes() | map(counting, {.threads = threads}));
    EXPECT_EQ(names_of(data, key_of).size(), 2 * all + 2);
    EXPECT_LE(most, threads);
  }
}

TEST_F(Stages, AnEpochWithoutItemsEndsNoOtherBehindAPrefetch) {
  const auto all_but_one = [](sample s) {
    return s.where.epoch == 1 ? std::nullopt : std::optional(std::move(s));
  };
  const auto items_of_epoch = [](auto& data) {
    std::size_t n = 0;
    while (data.next()) ++n;
    return n;
  };
  const auto plain = lanes(4) | map(all_but_one);
  for (const auto& what : {plain, plain | prefetch(1), plain | prefetch(50)}) {
    auto data = engine_.run(what);
    for (const std::size_t n : {all, std::size_t{0}, all, all}) EXPECT_EQ(items_of_epoch(data), n);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(data.next());

    auto before = engine_.run(what);
    EXPECT_EQ(items_of_epoch(before), all);
    EXPECT_EQ(items_of_epoch(before), 0U);
    auto after = engine_.run(what);
    after.restore(before.save());
    for (const std::size_t n : {all, all, std::size_t{0}}) EXPECT_EQ(items_of_epoch(after), n);
  }
}

TEST_F(Stages, MapLeavesOutAndFails) {
  const auto what = [](sample s) -> result<std::optional<sample>> {
    if (s.key.ends_with("3")) return std::optional<sample>();
    if (s.key.ends_with("4")) return error(errc::bad_image, "four").key(s.key).skippable();
    if (s.key == "s000305") throw failure(error(errc::bad_field, "thrown").skippable());
    return std::optional(std::move(s));
  };
  auto data = engine_.run(lanes(1) | map(what, {.threads = 2}) | on_error(skip_errors()));
  const auto got = names_of(data, key_of);
  const auto counts = data.counts();
  EXPECT_EQ(counts.skipped.at(errc::bad_image), 4U);
  EXPECT_EQ(counts.skipped.at(errc::bad_field), 1U);
  EXPECT_EQ(got.size(), all - 5 - 4 - 1 + 1);  // five end with 3; plus the end
}

TEST_F(Stages, SampleStagesInLanesAreAppliedToWhatIsReadAgain) {
  const auto plan = lanes() | select([](const sample& s) { return s.key.back() != '7'; }) |
                    rename_fields({{"t?t;none", "text"}}) | shuffle({.samples = 20, .seed = 3}) |
                    drop_fields("c*");
  const auto shape = [](const sample& s) {
    std::string out = s.key;
    for (const field& f : s.fields) out += "." + f.extension;
    return out;
  };
  auto data = engine_.run(plan);
  const auto first = data.next();
  EXPECT_TRUE(shape(*first).ends_with(".text")) << shape(*first);
  expect_resumable(interleaved(plan), shape);
}

TEST_F(Stages, AMissingOrDoubledFieldIsAnErrorOfItsSample) {
  auto missing = engine_.run(interleaved(lanes(1) | rename_fields({{"jpg", "image"}}, true)));
  try {
    missing.next();
    FAIL();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::missing_field);
    EXPECT_TRUE(f.why().is_skippable());
  }
  auto doubled = engine_.run(interleaved(lanes(1) | rename_fields({{"*", "x"}})));
  EXPECT_THROW(doubled.next(), failure);
}

TEST_F(Stages, APartOfTheSamplesIsTheSameForAnyNumberOfRanks) {
  std::set<std::string> one;
  std::set<std::string> many;
  for (const int world : {1, 2}) {
    for (int rank = 0; rank < world; ++rank) {
      auto data =
          engine_.run(interleaved(shards({"memory:t0", "memory:t1", "memory:t2", "memory:t3"},
                                         {.rank = rank, .world_size = world, .lanes = 2}) |
                                  untar() | group_by_key() | select_part(0.5, 9)));
      while (auto s = data.next()) (world == 1 ? one : many).insert(s->key);
    }
  }
  EXPECT_EQ(one, many);
  EXPECT_GT(one.size(), all / 4);
  EXPECT_LT(one.size(), all * 3 / 4);
  EXPECT_THROW(select_part(1.5), failure);
}

TEST_F(Stages, BatchesOfAnythingAndBack) {
  const auto keys = [](const group_of<sample>& g) {
    std::string out;
    for (const sample& s : g) out += s.key + " ";
    return out;
  };
  auto data = engine_.run(lanes(1) | batched(8));
  const auto got = names_of(data, keys);
  EXPECT_EQ(got.size(), (all + 7) / 8 + 1);
  auto whole = engine_.run(lanes(1) | batched(8, false));
  EXPECT_EQ(names_of(whole, keys).size(), all / 8 + 1);
  EXPECT_EQ(whole.counts().dropped, all % 8);
  expect_resumable(lanes() | batched(7), keys, 1);
  expect_resumable(lanes() | batched(7) | unbatched(), key_of);
}

TEST_F(Stages, EpochsOfAnyLengthGoOnWhereTheLastOneStopped) {
  auto data = engine_.run(interleaved(lanes(1)) | epochs_of(20));
  const auto got = names_of(data, key_of);
  ASSERT_EQ(got.size(), all + 3);
  EXPECT_EQ(got[20], "end");
  EXPECT_EQ(got[41], "end");
  EXPECT_EQ((std::set<std::string>(got.begin(), got.end()).size()), all + 1);
  expect_resumable(interleaved(lanes()) | epochs_of(17), key_of);
  // Items held by a later stage are not counted twice.
  expect_resumable(interleaved(lanes()) | epochs_of(17) | map(same, {.threads = 3}), key_of, 1);
}

TEST_F(Stages, EpochsOfSeveralOfTheDatas) {
  auto data = engine_.run(interleaved(lanes(5)) | repeated(2));
  const auto got = names_of(data, key_of);
  ASSERT_EQ(got.size(), 5 * all + 3);  // the last one is shorter
  EXPECT_EQ(got[2 * all], "end");
  EXPECT_EQ(got[4 * all + 1], "end");
  EXPECT_EQ(got.back(), "end");
  expect_resumable(interleaved(lanes(3)) | repeated(2), key_of, 7);
  expect_resumable(interleaved(lanes(4)) | repeated(2) | map(same, {.threads = 3}), key_of, 1);
}

// Lanes wait for read buffers, and a batch for the lanes: its memory is not theirs.
TEST_F(Stages, ABatchMayBeLargerThanWhatLanesReadWith) {
  constexpr std::size_t payload = 100'000;
  constexpr int samples = 400;  // 40 MB, of which a lane may hold 5
  store_->put("large", text_shard(0, samples, payload));
  const auto large = shards({"memory:large"}, {.shuffle = false}) | untar() | group_by_key();
  engine eng(with_memory_store(store_, 2, 192_MiB));
  auto data = eng.run(large | batched(200));
  EXPECT_EQ(data.next()->size(), 200U);
  auto in_buckets =
      eng.run(large | bucketed([](const sample&) { return 1; }, {{.up_to = 1, .size = 200}}));
  EXPECT_EQ(in_buckets.next()->size(), 200U);
  auto as_records = eng.run(large | map(decode_fields) | batched(200));
  const auto records = as_records.next();
  EXPECT_EQ(records->size(), 200U);
  EXPECT_EQ(std::get<std::string>(*records->items[199].find("txt")).size(), payload);

  auto too_large = eng.run(large | batched(samples));
  try {
    too_large.next();
    FAIL();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::no_memory);
    EXPECT_NE(f.why().message().find("MILLRACE_MEMORY"), std::string::npos) << f.why().message();
  }
}

// By the last digit: three buckets of different sizes, and one digit without a bucket.
TEST_F(Stages, Buckets) {
  const auto digit = [](const sample& s) -> std::int64_t { return s.key.back() - '0'; };
  const auto keys = [](const group_of<sample>& g) {
    std::string out;
    for (const sample& s : g) out += s.key + " ";
    return out;
  };
  const std::vector<bucket> sizes{{.up_to = 1, .size = 4}, {.up_to = 4, .size = 7}, {8, 3}};
  auto data = engine_.run(lanes(1) | bucketed(digit, sizes) | on_error(skip_errors()));
  std::size_t given = 0;
  std::size_t short_ones = 0;
  while (const auto group = data.next()) {
    std::set<std::size_t> which;
    for (const sample& s : *group) which.insert(digit(s) <= 1 ? 0 : digit(s) <= 4 ? 1 : 2);
    ASSERT_EQ(which.size(), 1U);
    ASSERT_LE(group->size(), sizes[*which.begin()].size);
    short_ones += group->size() < sizes[*which.begin()].size ? 1 : 0;
    given += group->size();
  }
  EXPECT_LE(short_ones, 3U);
  EXPECT_EQ(data.counts().skipped.at(errc::too_large), 4U);
  EXPECT_EQ(given, all - 4);
  auto whole = engine_.run(lanes(1) | bucketed(digit, sizes, false) | on_error(skip_errors()));
  std::size_t in_whole_ones = 0;
  while (const auto group = whole.next()) in_whole_ones += group->size();
  EXPECT_GT(whole.counts().dropped, 0U);
  EXPECT_EQ(in_whole_ones + whole.counts().dropped, given);
  expect_resumable(lanes() | bucketed(digit, sizes) | on_error(skip_errors()), keys, 1);
  EXPECT_THROW(bucketed(digit, {}), failure);
  EXPECT_THROW(bucketed(digit, {{4, 1}, {4, 1}}), failure);
  EXPECT_THROW(bucketed(digit, {{4, 0}}), failure);
}

TEST_F(Stages, Collation) {
  auto data = engine_.run(lanes(1) | map(decode_fields) | map(to_tuple({"txt", "cls"})) |
                          batched(4) | map(collated));
  const auto first = data.next();
  ASSERT_EQ(first->columns.size(), 2U);
  EXPECT_EQ(std::get<std::vector<value>>(first->columns[0]).size(), 4U);
  const auto& labels = std::get<tensor>(first->columns[1]);
  EXPECT_EQ(labels.type, "i8");
  EXPECT_EQ(labels.shape, std::vector<std::int64_t>{4});
  std::int64_t label = 0;
  std::memcpy(&label, labels.data.data() + 3 * sizeof(label), sizeof(label));
  EXPECT_EQ(fmt::format("s{:06}", label), first->keys[3]);
}

TEST(Collated, StacksTensorsOfOneShapeAndNamesThoseThatDiffer) {
  const auto tuple = [](std::string key, std::vector<std::int64_t> shape, std::string content) {
    return tuple_of_values{
        .values = {tensor{"u1", std::move(shape), owned_bytes(std::move(content))}},
        .key = std::move(key)};
  };
  const auto good = collated({{tuple("a", {2, 1}, "ab"), tuple("b", {2, 1}, "cd")}});
  ASSERT_TRUE(good);
  const auto& whole = std::get<tensor>(good->columns[0]);
  EXPECT_EQ(whole.shape, (std::vector<std::int64_t>{2, 2, 1}));
  EXPECT_EQ(whole.data.text(), "abcd");
  const auto bad = collated({{tuple("a", {2, 1}, "ab"), tuple("b", {1, 2}, "cd")}});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().kind(), errc::bad_field);
  const std::string text = bad.error().message();
  EXPECT_NE(text.find("[2, 1] of 'a'"), std::string::npos) << text;
  EXPECT_NE(text.find("[1, 2] of 'b'"), std::string::npos) << text;
  EXPECT_FALSE(bad.error().is_skippable());
  EXPECT_EQ(collated({}).value().size(), 0U);
}

// The class of docs/stages.md, with numbers of the kinds that a user-defined record may have.
struct pair_of_samples {
  std::int64_t number = 0;
  std::vector<sample> items;
};

class pairs final : public stream<pair_of_samples> {
 public:
  explicit pairs(std::unique_ptr<stream<sample>> samples) : samples_(std::move(samples)) {}

  awaitable<outcome> next() override {
    while (held_.size() < 2) {
      auto one = co_await samples_->next();
      if (!one) co_return one.error();
      if (!*one) {
        held_.clear();
        co_return std::optional<pair_of_samples>();
      }
      held_.push_back(std::move(**one));
    }
    co_return pair_of_samples{number_++, std::exchange(held_, {})};
  }
  void save(state& to) const override {
    samples_->save(to);
    for (const sample& s : held_) to.hold(pending_record, {&s.where, 1});
    to.put("pairs", {number_});
  }
  void restore(const state& from) override {
    samples_->restore(from);
    if (const auto* r = from.find("pairs")) number_ = r->front();
  }

 private:
  std::unique_ptr<stream<sample>> samples_;
  std::vector<sample> held_;
  std::int64_t number_ = std::numeric_limits<std::int64_t>::min();
};

TEST_F(Stages, AClassOfOnesOwn) {
  const stage<sample, pair_of_samples> in_pairs{
      "pairs",
      [](run_context& /*run*/,
         std::unique_ptr<stream<sample>> samples) -> std::unique_ptr<stream<pair_of_samples>> {
        return std::make_unique<pairs>(std::move(samples));
      }};
  const auto name = [](const pair_of_samples& p) {
    return fmt::format("{}: {} {}", p.number, p.items[0].key, p.items[1].key);
  };
  expect_resumable(lanes() | shuffle({.samples = 9}) | in_pairs, name, 1);
}

TEST_F(Stages, Slices) {
  auto data = engine_.run(interleaved(lanes(1)) | slice(5, 20, 4));
  EXPECT_EQ(names_of(data, key_of).size(), 5U);
  expect_resumable(interleaved(lanes()) | slice(5, 40, 2), key_of);
  expect_resumable(interleaved(lanes()) | slice(5, 40, 2) | map(same, {.threads = 3}), key_of, 1);
}

TEST_F(Stages, KeysAreLogged) {
  testing::temporary_folder folder;
  const auto path = folder / "keys";
  auto data = engine_.run(interleaved(lanes(1) | log_keys(path)));
  names_of(data, key_of);
  std::ifstream in(path);
  std::size_t lines = 0;
  for (std::string line; std::getline(in, line);) {
    EXPECT_NE(line.find("\tmemory:t"), std::string::npos);
    ++lines;
  }
  EXPECT_EQ(lines, all);
}

std::string npy(std::string_view type, std::string_view shape, std::string_view data,
                std::string_view order = "False") {
  const std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}\n", type, order, shape);
  return "\x93NUMPY\x01" + std::string(1, '\0') + static_cast<char>(header.size()) +
         std::string(1, '\0') + header + std::string(data);
}

result<value> decoded(std::string_view extension, const std::string& content) {
  return decode_field(extension, owned_bytes(content));
}

TEST(Fields, AreDecodedByTheirExtensions) {
  EXPECT_EQ(std::get<std::string>(decoded("txt", "h\xc3\xa9").value()), "h\xc3\xa9");
  EXPECT_EQ(std::get<std::int64_t>(decoded("cls", " 12\n").value()), 12);
  EXPECT_EQ(std::get<std::int64_t>(decoded("a.COUNT", "-3").value()), -3);
  EXPECT_EQ(std::get<json_text>(decoded("json", "{\"a\": [1]}").value()).text, "{\"a\":[1]}");
  EXPECT_EQ(std::get<json_text>(decoded("mp", "\x82\xa1x\x05\xa1y\x19").value()).text,
            "{\"x\":5,\"y\":25}");
  EXPECT_EQ(std::get<json_text>(decoded("cbor", "\xa1\x61k\x01").value()).text, "{\"k\":1}");
  const std::string gz(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48\xcd\xc9\xc9\xe7\x02\x00\x20\x30\x3a\x36\x06"
      "\x00\x00\x00",
      26);
  EXPECT_EQ(std::get<std::string>(decoded("txt.gz", gz).value()), "hello\n");
  for (std::size_t size = 1; size < gz.size(); ++size) {
    EXPECT_FALSE(decoded("txt.gz", gz.substr(0, size))) << size;
  }
  // Formats that run code when read stay bytes.
  for (const char* raw : {"pkl", "pickle", "pyd", "pth", "pt", "jpg", "unknown"}) {
    EXPECT_TRUE(std::holds_alternative<bytes>(decoded(raw, "cos\nsystem\n").value())) << raw;
  }
  const auto array = std::get<tensor>(decoded("npy", npy("<i4", "(2, 1)", "abcdefgh")).value());
  EXPECT_EQ(array.type, "i4");
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(array.data.text(), "abcdefgh");
  EXPECT_EQ(std::get<tensor>(decoded("npy", npy("|u1", "()", "x")).value()).count(), 1);
}

TEST(Fields, WhatIsNotWhatItSaysIsAnError) {
  for (const auto& [extension, content] : std::vector<std::pair<std::string, std::string>>{
           {"txt", "\xff"},
           {"txt", "\xed\xa0\x80"},
           {"cls", "1.5"},
           {"cls", ""},
           {"json", "{"},
           {"mp", "\xc1"},
           {"cbor", "\xa1"},
           // Nested endlessly, or longer than its stated length.
           {"json", std::string(1'000'000, '[') + std::string(1'000'000, ']')},
           {"mp", std::string(1'000'000, '\x91') + '\x01'},
           {"cbor", std::string(1'000'000, '\x81') + '\x01'},
           {"cbor", "\x9b" + std::string(8, '\xcc')},
           {"mp", "\xdd" + std::string(4, '\x7f')},
           {"txt.gz", "no"},
           {"npy", "no"},
           {"npy", npy("<i4", "(3,)", "abcdefgh")},
           {"npy", npy("<i4", "(99999999999999, 99999999999999)", "abcdefgh")},
           {"npy", npy(">i4", "(2,)", "abcdefgh")},
           {"npy", npy("<i4", "(2,)", "abcdefgh", "True")},
           {"npy", npy("|O", "(1,)", "abcdefgh")},
           {"npy", npy("<i4", "", "abcdefgh")},
           {"npy", npy("<i4", "2", "abcdefgh")},
           {"npz", "no zip"},
           {"ten", "~TenBin~" + std::string(8, '\xff')}}) {
    const auto outcome = decoded(extension, content);
    ASSERT_FALSE(outcome) << extension;
    EXPECT_EQ(outcome.error().kind(), errc::bad_field) << extension;
  }
}

TEST_F(Stages, RecordsAndTuples) {
  auto data = engine_.run(lanes(1) | map(decode_fields) | map(to_tuple({"jpg;txt", "cls"})));
  const auto first = data.next();
  EXPECT_EQ(first->values.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<std::string>(first->values[0]));
  EXPECT_EQ(fmt::format("s{:06}", std::get<std::int64_t>(first->values[1])), first->key);
  auto missing = engine_.run(lanes(1) | map(decode_fields) | map(to_tuple({"jpg"})));
  EXPECT_THROW(missing.next(), failure);
}

TEST(Fields, Patterns) {
  EXPECT_TRUE(matches_any("jpg;png", "png"));
  EXPECT_TRUE(matches_any("*.json", "a.b.json"));
  EXPECT_TRUE(matches_any("t?t", "txt"));
  // Many stars take no time.
  std::string stars;
  for (int i = 0; i < 30; ++i) stars += "*a";
  EXPECT_TRUE(matches_any(stars + "*", std::string(10'000, 'a')));
  EXPECT_FALSE(matches_any(stars + "*b", std::string(10'000, 'a')));
  EXPECT_FALSE(matches_any("a**?b", "ab"));
  EXPECT_TRUE(matches_any("a**b*", "axxbb"));
  EXPECT_FALSE(matches_any("jp?g", "jpg"));
  EXPECT_FALSE(matches_any("", "x"));
}

// Each item that is ready carries a state, with an origin for every held sample.
TEST(Prefetch, KeepsFewerItemsWhereTheirStatesAreLarge) {
  auto store = std::make_shared<memory_store>(1_MiB);
  store->put("many", testing::text_shard(0, 22'000, 1));
  engine eng(testing::with_memory_store(store));
  std::atomic<int> made = 0;
  const auto count = [&made](sample s) {
    ++made;
    return s;
  };
  auto data = eng.run(shards({"memory:many"}, {.lanes = 1}) | untar() | group_by_key() |
                      shuffle({.samples = 20'000}) | map(count, {.threads = 1}) | prefetch(2000));
  constexpr int of_32_mib = (32 << 20) / static_cast<int>(sizeof(origin)) / 20'000;
  for (int given = 1; given <= 1000; ++given) {
    ASSERT_TRUE(data.next());
    ASSERT_LE(made - given, of_32_mib + 20) << "after " << given;
  }
}

}  // namespace
}  // namespace millrace
