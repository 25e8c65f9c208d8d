// How loaders end: in functions of plans, on other threads, stopped at the same time.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/text_shards.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::keys_of_epoch;
using testing::with_memory_store;

class LoaderEnds : public testing::text_shards {
 protected:
  static lane_plan<sample> head() {
    return shards(urls(), {.seed = 1, .lanes = 2}) | untar() | group_by_key();
  }

  engine eng_{with_memory_store(store_)};
};

// Its destructor cannot wait for the thread that it is on, nor for one of a pool that its run
// needs.
TEST_F(LoaderEnds, InAFunctionWithTheNextLoader) {
  for (const int threads : {0, 1}) {
    std::string said;
    set_log_sink([&](std::string_view line) { said += line; });
    auto functions = std::make_shared<int>();
    const std::weak_ptr<int> alive = functions;
    auto inner = std::make_shared<std::optional<loader<sample>>>();
    inner->emplace(
        eng_.run(interleaved(head()) | map([held = std::move(functions)](sample s) { return s; })));
    inner->value().next();
    {
      auto outer = eng_.run(interleaved(head()) | map(
                                                      [inner](sample s) {
                                                        inner->reset();
                                                        return s;
                                                      },
                                                      {.threads = threads}));
      bounded("a loader that is destroyed in a function",
              [&] { EXPECT_EQ(keys_of_epoch(outer).size(), all_keys().size()); });
    }
    set_log_sink(nullptr);
    EXPECT_NE(said.find("a loader was destroyed by a function"), std::string::npos) << said;
    EXPECT_TRUE(alive.expired());
  }
}

// It ends once the call of it that is under way has ended, which a stop brings about.
TEST_F(LoaderEnds, StoppedInItsOwnFunction) {
  auto functions = std::make_shared<int>();
  const std::weak_ptr<int> alive = functions;
  std::optional<loader<sample>> own;
  own.emplace(eng_.run(interleaved(head()) | map([&own, held = std::move(functions)](sample s) {
                         const auto last = std::exchange(own, std::nullopt);
                         return s;
                       })));
  bounded("a loader that its own function destroys", [&] {
    try {
      own->next();  // the item that was made, or the stop
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::stopped) << f.what();
    }
  });
  const auto next = eng_.run(interleaved(head()));
  EXPECT_TRUE(alive.expired());
}

// What an I/O thread asks of itself waits in a queue of its own, which what other threads ask for
// overtakes: the run is gone when the stop is called.
TEST_F(LoaderEnds, BeforeAStopIsCalled) {
  for (int round = 0; round < 60; ++round) {
    std::optional<loader<sample>> other(eng_.run(interleaved(head())));
    std::promise<void> stopped;
    std::atomic<bool> is_closing = false;
    bool is_first = true;
    auto data = eng_.run(interleaved(head()) | map([&](sample s) {
                           if (!std::exchange(is_first, false)) return s;
                           other->stop();
                           stopped.set_value();
                           while (!is_closing) std::this_thread::yield();
                           for (int i = 0; i < 100; ++i) std::this_thread::yield();
                           return s;
                         }));
    std::thread closes([&] {
      stopped.get_future().wait();
      is_closing = true;
      other.reset();
    });
    EXPECT_EQ(keys_of_epoch(data).size(), all_keys().size());
    closes.join();
  }
}

// Loaders of one engine, each on its own thread, end in any order, also after the engine.
TEST_F(LoaderEnds, InAnyOrderOnAnyThread) {
  for (std::size_t round = 0; round < 20; ++round) {
    auto eng = std::make_unique<engine>(with_memory_store(store_));
    std::vector<loader<sample>> loaders;
    for (int i = 0; i < 4; ++i) {
      loaders.push_back(eng->run(interleaved(head() | shuffle({.samples = 20})) |
                                 map([](sample s) { return s; }, {.threads = 1 + i % 2}) |
                                 prefetch(1 + i)));
    }
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < loaders.size(); ++i) {
      threads.emplace_back([own = std::move(loaders[i]), n = (round * 7 + i * 31) % 200]() mutable {
        try {
          for (std::size_t k = 0; k < n; ++k) own.next();
          if (n % 3 == 0) own.stop();
          own.save();
          own.next();
        } catch (const failure& f) {
          EXPECT_EQ(f.kind(), errc::stopped) << f.what();
        }
      });
    }
    if (round % 2 == 0) eng.reset();
    bounded("loaders on threads", [&] { threads.clear(); });
  }
}

}  // namespace
}  // namespace millrace
