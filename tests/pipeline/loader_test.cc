#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/shard_server.h"
#include "tests/support/tar_builder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::tar_builder;
using testing::text_shard;
using testing::with_memory_store;

using Loader = testing::text_shards;

TEST_F(Loader, AnEpochHasEverySampleOnceInAnotherOrderEachTime) {
  engine eng(with_memory_store(store_));
  auto data = eng.run(text_plan({.epochs = 3}));
  std::set<std::vector<std::string>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    auto keys = keys_of_epoch(data);
    orders.insert(keys);
    std::ranges::sort(keys);
    EXPECT_EQ(keys, all_keys());
  }
  EXPECT_EQ(orders.size(), 3U);
  EXPECT_FALSE(data.next());
  EXPECT_EQ(data.counts().delivered, 3 * all_keys().size());
}

TEST_F(Loader, TheOrderDoesNotDependOnThreadsPiecesOrMemory) {
  std::set<std::vector<std::string>> orders;
  for (const std::size_t piece : {1000U, 10'000U, 1'000'000U}) {
    for (const int threads : {1, 4}) {
      auto store = std::make_shared<memory_store>(piece);
      for (int i = 0; i < 6; ++i) {
        store->put("t" + std::to_string(i), text_shard(i * 1000, 40 + 5 * i, 3000));
      }
      engine eng(with_memory_store(store, threads, 64_MiB * static_cast<std::size_t>(threads)));
      auto data = eng.run(text_plan());
      orders.insert(keys_of_epoch(data));
    }
  }
  EXPECT_EQ(orders.size(), 1U);
}

TEST_F(Loader, RanksTogetherReadEverySampleOnce) {
  engine eng(with_memory_store(store_));
  std::vector<std::string> all;
  for (int rank = 0; rank < 4; ++rank) {
    auto data = eng.run(text_plan({.rank = rank, .world_size = 4}));
    const auto keys = keys_of_epoch(data);
    all.insert(all.end(), keys.begin(), keys.end());
  }
  std::ranges::sort(all);
  EXPECT_EQ(all, all_keys());
}

// Until a lane has ended, the samples at positions [n, n + k) are the same for every world size.
TEST_F(Loader, GlobalBatchesAreTheSameForEveryWorldSizeThatDividesTheLanes) {
  engine eng(with_memory_store(store_));
  const auto first = [&](int world) {
    std::map<std::int64_t, std::string> by_position;
    for (int rank = 0; rank < world; ++rank) {
      auto data = eng.run(text_plan({.rank = rank, .world_size = world, .lanes = 6}));
      for (int i = 0; i < 120 / world; ++i) {
        const auto s = data.next();
        by_position[s->where.position] = s->key;
      }
    }
    return by_position;
  };
  const auto one = first(1);
  EXPECT_EQ(one.size(), 120U);
  EXPECT_EQ(one.rbegin()->first, 119);
  EXPECT_EQ(first(2), one);
  EXPECT_EQ(first(3), one);
  EXPECT_EQ(first(6), one);
}

TEST_F(Loader, RestoredItGoesOnWithExactlyTheNextSample) {
  engine eng(with_memory_store(store_));
  auto reference = eng.run(text_plan({.epochs = 2}));
  auto expected = keys_of_epoch(reference);
  expected.emplace_back("end");
  for (const auto& key : keys_of_epoch(reference)) expected.push_back(key);
  // At the start, within epochs, and at and around their ends.
  const std::size_t epoch = all_keys().size();
  for (const std::size_t stop_at : {std::size_t{0}, std::size_t{1}, std::size_t{57}, epoch - 1,
                                    epoch, epoch + 1, 2 * epoch - 3}) {
    auto first = eng.run(text_plan({.epochs = 2}));
    for (std::size_t i = 0; i < stop_at; ++i) first.next();
    const auto text = first.save().to_json();
    auto second = eng.run(text_plan({.epochs = 2}));
    second.restore(state::from_json(text).value());
    for (std::size_t i = stop_at; i < expected.size(); ++i) {
      const auto s = second.next();
      ASSERT_EQ(s ? s->key : "end", expected[i]) << "stopped at " << stop_at << ", item " << i;
    }
    EXPECT_FALSE(second.next());
  }
}

TEST_F(Loader, AStateOfAThousandSamplesHeldIsAFewKilobytes) {
  for (int i = 0; i < 4; ++i) {
    store_->put("long" + std::to_string(i), text_shard(i * 1000, 1000, 11'000));
  }
  engine eng(with_memory_store(store_, 2, 512_MiB));
  auto data = eng.run(shards({"memory:long0", "memory:long1", "memory:long2", "memory:long3"},
                             {.seed = 3, .lanes = 2}) |
                      untar() | group_by_key() | shuffle({.samples = 1000, .seed = 3}));
  for (int i = 0; i < 700; ++i) data.next();
  const state saved = data.save();
  std::size_t held = 0;
  for (const auto& [name, samples] : saved.all_held()) held += samples.size();
  EXPECT_EQ(held, 998U);  // a lane has just yielded one, or is about to take one
  EXPECT_LT(saved.to_json().size(), 6'000U);
}

// Members that each fill a read buffer, in samples with more members than a lane has buffers.
TEST_F(Loader, ASampleOfMoreMembersThanBuffersIsNoDeadlock) {
  constexpr std::size_t piece = 64_KiB;
  for (const std::size_t size : {piece - 512, piece, 3 * piece - 512}) {
    tar_builder t;
    for (int s = 0; s < 6; ++s) {
      for (int m = 0; m < 7; ++m) t.file(fmt::format("{}.m{}", s, m), std::string(size, 'x'));
    }
    testing::temporary_folder folder;
    const auto path = folder.write("a.tar", t.end().str());
    engine eng(with_memory_store(store_, 1, 32_MiB));
    auto plan = shards({path}, {.lanes = 1}) | untar() | group_by_key() | shuffle({.samples = 4});
    auto data = eng.run(plan);
    EXPECT_EQ(data.next()->payload_bytes(), 7 * size);
    auto again = eng.run(plan);
    again.restore(data.save());
    EXPECT_EQ(keys_of_epoch(again).size(), 5U);
  }
}

TEST_F(Loader, AStateOfAnotherPlanIsRefused) {
  engine eng(with_memory_store(store_));
  auto first = eng.run(text_plan());
  first.next();
  const state saved = first.save();
  const auto refused = [&](const lane_plan<sample>& other) {
    auto data = eng.run(other);
    try {
      data.restore(saved);
    } catch (const failure& f) {
      return f.why().message();
    }
    return std::string("taken");
  };
  EXPECT_EQ(refused(text_plan({.lanes = 4})), "taken");  // the rest is assigned to other lanes
  EXPECT_NE(
      refused(shards(urls(5), {.seed = 42}) | untar() | group_by_key()).find("list of shards"),
      std::string::npos);
  EXPECT_EQ(refused(text_plan()), "taken");
  std::string damaged = saved.to_json();
  damaged[damaged.find("lane0") + 12] ^= 1;
  EXPECT_EQ(state::from_json(damaged).error().kind(), errc::bad_state);
  EXPECT_EQ(state::from_json("{}").error().kind(), errc::bad_state);
}

TEST_F(Loader, ResamplingNeverEnds) {
  engine eng(with_memory_store(store_));
  auto data = eng.run(text_plan({.mode = epoch_mode::resample}));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(data.next());
  const state saved = data.save();
  auto again = eng.run(text_plan({.mode = epoch_mode::resample}));
  again.restore(saved);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(data.next()->key, again.next()->key);
}

TEST_F(Loader, ABrokenShardGivesItsWholeSamplesThenOneErrorThenTheOthers) {
  store_->put("t2", store_->find("t2")->substr(0, 100'000));
  engine eng(with_memory_store(store_));
  auto data = eng.run(shards(urls(), {.lanes = 1, .shuffle = false}) | untar() | group_by_key());
  std::size_t samples = 0;
  std::optional<error> failed;
  for (bool more = true; more;) {
    try {
      const auto s = data.next();
      more = s.has_value();
      if (!s) continue;
      ++samples;
      EXPECT_EQ(s->fields.size(), 2U) << s->key;
    } catch (const failure& f) {
      EXPECT_FALSE(failed);
      failed = f.why();
    }
  }
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->kind(), errc::truncated);
  EXPECT_EQ(failed->where(), "memory:t2");
  EXPECT_GT(failed->byte_offset(), 99'000U);
  EXPECT_FALSE(failed->sample_key().empty());
  // A sample of text and class takes 4,608 bytes: 21 are complete.
  EXPECT_EQ(samples, all_keys().size() - 50 + 21);
}

TEST_F(Loader, SkipsUpToALimitAndCounts) {
  // A shard that yields nothing counts as about fifty samples.
  store_->put("t2", "this is no archive, by far no archive");
  engine eng(with_memory_store(store_));
  auto skipping = eng.run(text_plan() | on_error(skip_up_to(60)));
  keys_of_epoch(skipping);
  const ledger counts = skipping.counts();
  EXPECT_EQ(counts.skipped.at(errc::truncated), 1U);
  EXPECT_EQ(counts.delivered, all_keys().size() - 50);
  ASSERT_EQ(counts.first_skipped.size(), 1U);
  EXPECT_NE(counts.first_skipped[0].find("memory:t2"), std::string::npos);

  auto failing = eng.run(text_plan() | on_error(fail_on_error()));
  EXPECT_THROW(keys_of_epoch(failing), failure);

  store_->put("t3", "nor is this");
  auto limited = eng.run(text_plan() | on_error(skip_up_to(60)));
  try {
    keys_of_epoch(limited);
    FAIL() << "two shards were skipped";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::too_many_skipped);
  }
}

TEST_F(Loader, EndlesslyBadDataEndsTheRunEvenWhenAllMayBeSkipped) {
  for (int i = 0; i < 6; ++i) store_->put("t" + std::to_string(i), "no archive");
  engine eng(with_memory_store(store_));
  auto data = eng.run(text_plan({.mode = epoch_mode::resample}) | on_error(skip_errors()));
  try {
    data.next();
    FAIL() << "there was a sample";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::too_many_skipped);
  }
}

TEST_F(Loader, DuplicateExtensionsLeaveTheSampleOut) {
  store_->put("t0", tar_builder()
                        .file("a.txt", "1")
                        .file("a.TXT", "2")
                        .file("a.cls", "3")
                        .file("b.txt", "4")
                        .end()
                        .str());
  engine eng(with_memory_store(store_));
  auto data = eng.run(shards(urls(1)) | untar() | group_by_key() | on_error(skip_up_to(5)));
  EXPECT_EQ(keys_of_epoch(data), (std::vector<std::string>{"b"}));
  EXPECT_EQ(data.counts().skipped.at(errc::duplicate_field), 1U);
}

TEST_F(Loader, AnEmptyEpochIsAnError) {
  store_->put("t0", tar_builder().file("noextension", "x").end().str());
  engine eng(with_memory_store(store_));
  auto data = eng.run(shards(urls(1)) | untar() | group_by_key());
  try {
    data.next();
    FAIL() << "no error";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::no_samples);
  }
}

TEST_F(Loader, ABudgetTooSmallForThePlanIsRefusedWithTheFigureThatWouldDo) {
  engine eng(with_memory_store(store_, 1, 16_MiB));
  try {
    eng.run(text_plan() | decode_jpeg() | batch({.size = 256}));
    FAIL() << "it was taken";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::no_memory);
    EXPECT_NE(f.why().message().find("(MILLRACE_MEMORY="), std::string::npos);
  }
}

TEST_F(Loader, AShuffleThatMemoryCutsShortKeepsItsOrderAndSaysSo) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  std::set<std::vector<std::string>> orders;
  for (int i = 0; i < 2; ++i) {
    engine eng(with_memory_store(store_, 1 + i));
    auto data = eng.run(shards(urls()) | untar() | group_by_key() |
                        shuffle({.samples = 1000, .bytes = 80'000}));
    auto keys = keys_of_epoch(data);
    orders.insert(keys);
    std::ranges::sort(keys);
    EXPECT_EQ(keys, all_keys());
  }
  set_log_sink(nullptr);
  EXPECT_EQ(orders.size(), 1U);
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("raise shuffle_options.bytes for"), std::string::npos) << lines[0];
}

TEST_F(Loader, StopEndsARunThatWaits) {
  testing::shard_server server;
  server.put("/a.tar", *store_->find("t0"));
  server.fail_next("/a.tar", {.stall_after = 1000});
  engine eng(with_memory_store(store_));
  auto data = eng.run(shards({server.url("/a.tar")}) | untar() | group_by_key());
  std::thread stopper([&] {
    while (server.requests().empty()) std::this_thread::yield();
    data.stop();
  });
  try {
    keys_of_epoch(data);
    FAIL() << "it came to its end";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::stopped);
  }
  stopper.join();
}

TEST_F(Loader, AMemberLargerThanItsLanesMemoryIsAnErrorNotAHang) {
  store_->put(
      "t0",
      tar_builder().file("a.bin", std::string(8_MiB, 'x')).file("b.bin", "small").end().str());
  engine eng(with_memory_store(store_, 1, 16_MiB));
  auto data = eng.run(shards({"memory:t0"}, {.lanes = 1}) | untar() | group_by_key());
  const auto whole = data.next();  // one lane may use the rest of the budget
  EXPECT_EQ(whole->fields[0].data.size(), 8_MiB);
  engine small(with_memory_store(store_, 1, 6_MiB));
  auto refused = small.run(shards({"memory:t0"}, {.lanes = 1}) | untar() | group_by_key());
  try {
    refused.next();
    FAIL() << "it was read";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::too_large);
    EXPECT_EQ(f.why().sample_key(), "a.bin");
  }
}

class ImageLoader : public ::testing::Test {
 protected:
  ImageLoader() {
    for (int i = 0; i < 4; ++i) paths_.push_back(folder_ / ("f" + std::to_string(i) + ".tar"));
    write_fake_shards(paths_, {.samples = 101, .classes = 4, .size = 40});
  }
  plan<host_batch> image_plan(int batch_size, bool train = true, std::int64_t epochs = 2,
                              int in_flight = 0) {
    return shards(paths_, {.seed = 5, .epochs = epochs}) | untar() | group_by_key() |
           shuffle({.samples = 30, .seed = 5}) |
           decode_jpeg({.size = 32, .train = train, .seed = 5, .in_flight = in_flight}) |
           on_error(skip_up_to(10)) | batch({.size = batch_size}) | prefetch(2);
  }
  // Keys, labels and pixels of a batch in one string.
  static std::string content(const host_batch& b) {
    std::string out;
    for (std::size_t i = 0; i < b.size(); ++i) out += fmt::format("{}={},", b.keys[i], b.labels[i]);
    out.append(reinterpret_cast<const char*>(b.data()), b.payload_bytes());
    return out;
  }

  testing::temporary_folder folder_;
  std::vector<std::string> paths_;
  std::shared_ptr<memory_store> none_ = std::make_shared<memory_store>();
};

TEST_F(ImageLoader, BatchesAreTheSameWhateverTheThreadsAndTheBackend) {
  std::set<std::string> contents;
  for (const int threads : {1, 2, 4}) {
    for (const io_backend io : {io_backend::automatic, io_backend::pread}) {
      auto o = with_memory_store(none_, threads);
      o.io = io;
      engine eng(o);
      auto data = eng.run(image_plan(16));
      std::string all;
      std::size_t batches = 0;
      for (const auto& b : data) {
        all += content(b);
        ++batches;
        EXPECT_EQ(b.size(), batches < 7 ? 16U : 5U);
      }
      EXPECT_EQ(batches, 7U);
      contents.insert(all);
    }
  }
  EXPECT_EQ(contents.size(), 1U);
}

// With few samples in flight, and with more than are left in the epoch: then the end of the epoch
// is in flight as well when the state is saved.
TEST_F(ImageLoader, RestoredItGivesExactlyTheNextBatches) {
  engine eng(with_memory_store(none_));
  for (const int in_flight : {2, 64, 500}) {
    const auto images = image_plan(16, true, 2, in_flight);
    std::vector<std::string> expected;
    auto reference = eng.run(images);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const auto& b : reference) expected.push_back(content(b));
      expected.emplace_back("end");
    }
    for (const std::size_t stop_at : {0U, 1U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 13U, 14U, 15U}) {
      auto first = eng.run(images);
      for (std::size_t i = 0; i < stop_at; ++i) first.next();
      // Saved, restored, and saved again at once: the second state is as good as the first.
      auto second = eng.run(images);
      second.restore(first.save());
      auto third = eng.run(images);
      third.restore(second.save());
      for (std::size_t i = stop_at; i < expected.size(); ++i) {
        const auto b = third.next();
        ASSERT_TRUE((b ? content(*b) : "end") == expected[i])
            << "in flight " << in_flight << ", stopped at " << stop_at << ", item " << i;
      }
    }
  }
}

TEST_F(ImageLoader, ABadImageIsLeftOutAndTheOthersMoveUp) {
  const auto store = std::make_shared<memory_store>();
  const auto pixels = fake_image({.size = 40}, 1, 7);
  const auto file = encode_jpeg(pixels, 40, 40, 90);
  const std::string good(reinterpret_cast<const char*>(file.data()), file.size());
  tar_builder t;
  for (int i = 0; i < 40; ++i) {
    const bool is_bad = i % 7 == 3;
    t.file(fmt::format("{:02}.jpg", i),
           is_bad ? good.substr(0, 200 + 20 * static_cast<std::size_t>(i)) : good);
    t.file(fmt::format("{:02}.cls", i), i == 20 ? "cat" : std::to_string(i));
  }
  store->put("s", t.end().str());
  engine eng(with_memory_store(store));
  auto data = eng.run(shards({"memory:s"}) | untar() | group_by_key() |
                      decode_jpeg({.size = 32, .train = false}) | on_error(skip_up_to(10)) |
                      batch({.size = 8}));
  std::vector<std::int64_t> labels;
  std::set<std::string> images;
  for (const auto& b : data) {
    for (std::size_t i = 0; i < b.size(); ++i) {
      labels.push_back(b.labels[i]);
      constexpr std::size_t bytes = 32UL * 32 * 3;
      images.insert(std::string(reinterpret_cast<const char*>(b.data()) + i * bytes, bytes));
    }
  }
  std::vector<std::int64_t> expected;
  for (int i = 0; i < 40; ++i) {
    if (i % 7 != 3 && i != 20) expected.push_back(i);
  }
  EXPECT_EQ(labels, expected);
  EXPECT_EQ(images.size(), 1U);  // all good images are identical, wherever they were moved
  EXPECT_EQ(data.counts().skipped.at(errc::bad_image), 6U);
  EXPECT_EQ(data.counts().skipped.at(errc::bad_label), 1U);
}

TEST_F(ImageLoader, LabelsThatAreNoClassAreSkippedAndCounted) {
  engine eng(with_memory_store(none_));
  // The shards hold four classes.
  auto data =
      eng.run(shards(paths_) | untar() | group_by_key() | decode_jpeg({.size = 32, .classes = 3}) |
              on_error(skip_errors()) | batch({.size = 16}));
  std::size_t images = 0;
  for (const auto& b : data) {
    for (const auto label : b.labels) EXPECT_LT(label, 3);
    images += b.size();
  }
  const ledger counts = data.counts();
  EXPECT_EQ(images + counts.skipped.at(errc::bad_label), 101U);
  EXPECT_GT(counts.skipped.at(errc::bad_label), 0U);
  EXPECT_NE(counts.first_skipped.at(0).find("is not one of 3 classes"), std::string::npos);
}

TEST_F(ImageLoader, AFatalErrorIsGivenAgainAndNeverWaitedFor) {
  engine eng(with_memory_store(none_));
  const auto images =
      shards({"gopher://nowhere/a.tar"}) | untar() | group_by_key() | decode_jpeg({.size = 32});
  auto plain = eng.run(images | batch({.size = 16}));
  auto ahead = eng.run(images | batch({.size = 16}) | prefetch(2));
  for (auto* data : {&plain, &ahead}) {
    for (int i = 0; i < 3; ++i) {
      try {
        data->next();
        FAIL() << "no error";
      } catch (const failure& f) {
        EXPECT_EQ(f.kind(), errc::unsupported);
      }
    }
  }
}

TEST_F(ImageLoader, DroppedSamplesAreCounted) {
  engine eng(with_memory_store(none_));
  auto data = eng.run(shards(paths_) | untar() | group_by_key() | decode_jpeg({.size = 32}) |
                      batch({.size = 16, .drop_last = true}));
  EXPECT_EQ(keys_of_epoch(data).size(), 96U);
  EXPECT_EQ(data.counts().dropped, 5U);
  EXPECT_EQ(data.counts().summary(), "delivered 96, skipped 0, dropped 5");
}

}  // namespace
}  // namespace millrace
