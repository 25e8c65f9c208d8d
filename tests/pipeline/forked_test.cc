// Using objects made before a fork in the child: their threads do not exist there, and what these
// held at that moment stays held.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "engine/files/line_file.h"
#include "millrace/millrace.h"
#include "pipeline/formats/tar_writer.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/wids/indexed_dataset.h"
#include "tests/support/forked.h"
#include "tests/support/image_shards.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::image_shards;
using testing::status_of_child;
using testing::with_memory_store;

// Everything that a program may hold when it forks, while other threads use the same engine.
class Forked : public ::testing::Test {
 protected:
  Forked() {
    for (int i = 0; i < 3; ++i) {
      const std::string path = folder_ / ("s" + std::to_string(i) + ".tar");
      tar_writer out(path);
      for (int k = 0; k < 40; ++k) {
        out.add(fmt::format("{}-{:03}.txt", i, k),
                std::string(static_cast<std::size_t>(k) * 50, 'x'));
      }
      out.close();
      files_.push_back(path);
      index_.shards.push_back({.url = path, .samples = 40});
    }
  }

  lane_plan<sample> text() const {
    return shards(files_, {.seed = 1, .epochs = 1'000'000}) | untar() | group_by_key() |
           shuffle({.samples = 20, .seed = 1});
  }
  plan<host_batch> images() const {
    return shards(data_.urls(), {.seed = 1, .epochs = 1'000'000}) | untar() | group_by_key() |
           decode_jpeg({.size = 16, .seed = 1, .cache = cache_}) | batch({.size = 4, .held = 4}) |
           prefetch(2);
  }
  template <class F>
  static bool is_refused(F f) {
    try {
      f();
    } catch (const failure& e) {
      return e.kind() == errc::usage &&
             std::string(e.what()).find("before fork()") != std::string::npos;
    }
    return false;
  }
  template <class T>
  static T next_of(loader<T>& data) {
    for (;;) {
      if (auto item = data.next()) return std::move(*item);
    }
  }

  const testing::temporary_folder folder_;
  image_shards data_{2, 40, 0, 1};
  std::vector<std::string> files_;
  shard_index index_;
  std::shared_ptr<decoded_cache> cache_ =
      cache_decoded({.bytes = 4'000'000, .folder = folder_ / "", .resize = 0});
};

TEST_F(Forked, AChildLetsGoOfEverythingWhateverTheThreadsAreAt) {
  bounded("forked", [&] {
    auto eng = std::make_unique<engine>(with_memory_store(data_.store()));
    std::stop_source stopping;
    auto batches = std::make_unique<loader<host_batch>>(eng->run(images(), stopping.get_token()));
    auto samples = std::make_unique<loader<sample>>(eng->run(text()));
    auto random_access = std::make_unique<indexed_dataset>(*eng, index_);
    // Takes and releases items on its own thread, so that the shares' locks are often held.
    auto busy = eng->run(text());
    std::atomic<bool> is_over = false;
    std::jthread user([&] {
      while (!is_over) next_of(busy);
    });
    const struct at_the_end {
      std::atomic<bool>& flag;
      ~at_the_end() { flag = true; }
    } over{is_over};
    for (int i = 0; i < 100; ++i) {
      auto batch = std::make_optional(next_of(*batches));
      auto text_sample = std::make_optional(next_of(*samples));
      const int status = status_of_child([&] {
        batch.reset();
        text_sample.reset();
        samples->stop();
        stopping.request_stop();
        const bool all_refused =
            is_refused([&] { batches->next(); }) && is_refused([&] { batches->stats(); }) &&
            is_refused([&] { batches->counts(); }) &&
            is_refused([&] { static_cast<void>(batches->save()); }) &&
            is_refused([&] { samples->restore({}); }) && is_refused([&] { eng->run(text()); }) &&
            is_refused([&] { random_access->get(3); });
        cache_->summary();
        random_access.reset();
        samples.reset();
        batches.reset();
        eng.reset();
        if (i % 10 != 0) return all_refused ? 0 : 1;
        engine own(with_memory_store(data_.store()));
        auto data = own.run(text());
        for (int k = 0; k < 10; ++k) next_of(data);
        auto decoded = own.run(images());
        next_of(decoded);
        return all_refused ? 0 : 1;
      });
      ASSERT_EQ(status, 0) << "child " << i;
    }
  });
}

// Both processes would write at the same free place of the file.
TEST_F(Forked, AChildKeepsNothingInTheParentsCache) {
  const decoded_cache::place where{
      .url = 1, .offset = 2, .field = 3, .how = 4, .bytes = 5, .crc = 6};
  const auto keep = [&](const std::string& rgb) {
    cache_->add(where, {.rgb = std::as_bytes(std::span(rgb)), .width = 5, .height = 2});
  };
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const int status = status_of_child(
      [&] {
        char byte = 0;
        const bool told = read(ends[0], &byte, 1) == 1;
        keep(std::string(30, 'c'));
        std::vector<std::uint8_t> room;
        return told && !cache_->find(where, room) ? 0 : 1;
      },
      [&] {
        keep(std::string(30, 'p'));
        EXPECT_EQ(write(ends[1], "x", 1), 1);
      });
  for (const int fd : ends) close(fd);
  EXPECT_EQ(status, 0);
  std::vector<std::uint8_t> room;
  const auto found = cache_->find(where, room);
  ASSERT_TRUE(found);
  EXPECT_EQ(std::string(room.begin(), room.end()), std::string(30, 'p'));
}

TEST_F(Forked, AChildLeavesFilesToTheParent) {
  const std::string path = folder_ / "written.tar";
  auto out = std::make_unique<tar_writer>(path);
  out->add("a.txt", "one");
  auto lines = std::make_unique<line_file>(folder_ / "lines", "lines");
  EXPECT_EQ(status_of_child([&] {
              const bool refused = is_refused([&] { out->close(); });
              out.reset();
              lines.reset();
              return refused ? 0 : 1;
            }),
            0);
  out->add("b.txt", "two");
  out->close();
  EXPECT_TRUE(lines->add("a line\n"));
  engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
  auto data = eng.run(shards({path}, {.lanes = 1}) | untar() | group_by_key());
  EXPECT_EQ(testing::keys_of_epoch(data), (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace millrace
