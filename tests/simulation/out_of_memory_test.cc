// The engine's promises when memory runs out: nothing that releases or ends allocates, and an
// operation that cannot begin reports that to its caller and changes nothing.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <new>
#include <string_view>
#include <vector>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/posted_call.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/timer.h"
#include "engine/memory/memory.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"
#include "engine/threads/pread_io.h"
#include "engine/threads/worker_pool.h"
#include "millrace/millrace.h"
#include "pipeline/samples/fields.h"
#include "pipeline/samples/label.h"
#include "pipeline/shards/shard_index.h"
#include "tests/simulation/allocations.h"
#include "tests/support/seeds.h"
#include "tests/support/simulator.h"
#include "tests/support/tar_builder.h"

namespace millrace::testing {
namespace {

using namespace std::chrono_literals;

// Calls `f` with the first, the second, ... allocation failing, until it passes without a failure.
template <class F>
void fail_each_allocation(F f) {
  constexpr std::uint64_t far_too_many = 1000;
  for (std::uint64_t n = 1; n < far_too_many; ++n) {
    SCOPED_TRACE(n);
    if (f(n) < n) return;
  }
  FAIL() << "it never passed";
}

awaitable<void> wait_on(condition* what, int* ended) {
  co_await what->wait();
  ++*ended;
}

TEST(OutOfMemory, ASpawnThatFailsLeavesTheScopeAsItWasAndTellsItsCaller) {
  fail_each_allocation([](std::uint64_t n) {
    asio::io_context io;
    condition never(io.get_executor());
    scope tasks(io.get_executor());
    int ended = 0;
    bool refused = false;
    std::uint64_t allocated = 0;
    asio::post(io, [&] {
      tasks.spawn(wait_on(&never, &ended));
      allocations::arm(n, false);
      try {
        tasks.spawn(wait_on(&never, &ended));
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      allocated = allocations::disarm();
    });
    io.restart();
    io.poll();
    // If the coroutine itself lacked memory, the scope fails and stops the others.
    const bool failed_later = tasks.first_thrown() != nullptr;
    EXPECT_EQ(tasks.running(), failed_later ? 0U : refused ? 1U : 2U);
    EXPECT_EQ(refused || failed_later, allocated >= n);
    never.notify_all();
    io.restart();
    io.poll();
    EXPECT_EQ(tasks.running(), 0U);
    return allocated;
  });
}

TEST(OutOfMemory, ACoroutineEndsWithoutAllocating) {
  asio::io_context io;
  condition turn(io.get_executor());
  scope tasks(io.get_executor());
  int ended = 0;
  bool empty = false;
  tasks.when_empty([&] { empty = true; });
  tasks.spawn(wait_on(&turn, &ended));
  tasks.spawn(wait_on(&turn, &ended));
  io.poll();
  allocations::arm(1, true);
  turn.notify_one();
  io.restart();
  io.poll();
  tasks.stop();
  io.restart();
  io.poll();
  EXPECT_EQ(allocations::disarm(), 0U);
  EXPECT_TRUE(empty);
}

awaitable<void> take(std::shared_ptr<memory_share> from, std::size_t size,
                     std::vector<buffer>* into) {
  auto got = co_await from->acquire(size);
  if (got) into->push_back(std::move(*got));
}

TEST(OutOfMemory, MemoryIsGivenBackAndGivenToWhoWaitsWithoutAllocating) {
  asio::io_context io;
  const auto share = std::make_shared<memory_share>("test", 1_MiB, default_host_allocator());
  scope tasks(io.get_executor());
  std::vector<buffer> held;
  for (const std::size_t size : {64_KiB, 128_KiB, 512_KiB, 320_KiB}) {
    held.push_back(share->try_acquire(size));
    ASSERT_TRUE(held.back());
  }
  std::vector<buffer> waited;
  waited.reserve(2);
  tasks.spawn(take(share, 256_KiB, &waited));
  io.poll();
  allocations::arm(0, false);
  held.clear();
  EXPECT_EQ(allocations::disarm(), 0U);
  io.restart();
  io.poll();
  EXPECT_EQ(waited.size(), 1U);
  waited.clear();
  EXPECT_EQ(share->in_use(), 0U);
}

TEST(OutOfMemory, ARequestThatFailsChargesNothingAndLeavesTheQueue) {
  fail_each_allocation([](std::uint64_t n) {
    asio::io_context io;
    const auto share = std::make_shared<memory_share>("test", 256_KiB, default_host_allocator());
    scope tasks(io.get_executor());
    auto first = share->try_acquire(192_KiB);
    std::vector<buffer> waited;
    waited.reserve(2);
    allocations::arm(n, false);
    try {
      tasks.spawn(take(share, 128_KiB, &waited));
    } catch (const std::bad_alloc&) {
    }
    io.poll();
    first = buffer();
    io.restart();
    io.poll();
    const std::uint64_t allocated = allocations::disarm();
    waited.clear();
    EXPECT_EQ(share->in_use(), 0U);
    EXPECT_TRUE(share->try_acquire(256_KiB));
    return allocated;
  });
}

awaitable<int> answer() {
  co_return 42;
}

awaitable<void> ask(int* with, bool* threw) {
  try {
    const auto told = co_await unless_first(sleep_for(1h), answer());
    *with = told.value_or(0);
  } catch (const std::bad_alloc&) {
    *threw = true;
  }
}

TEST(OutOfMemory, AWaitForTheFirstOfTwoEndsWithOneOfThemOrThrows) {
  fail_each_allocation([](std::uint64_t n) {
    asio::io_context io;
    scope tasks(io.get_executor());
    int got = 0;
    bool threw = false;
    asio::post(io, [&] { tasks.spawn(ask(&got, &threw)); });
    allocations::arm(n, false);
    bool refused = false;
    try {
      io.poll();
    } catch (const std::bad_alloc&) {
      refused = true;  // the spawn itself
    }
    const std::uint64_t allocated = allocations::disarm();
    io.restart();
    io.poll();
    EXPECT_EQ(tasks.running(), 0U);
    EXPECT_TRUE(got == 42 || threw || refused);
    return allocated;
  });
}

awaitable<void> compute(io_thread* home, worker_pool* pool, int* into) {
  *into = co_await offload(*home, *pool, [] { return 42; });
}

TEST(OutOfMemory, WorkThatIsAwayComesBackToWhoAskedForIt) {
  fail_each_allocation([](std::uint64_t n) {
    simulator sim(n);
    io_thread io(0, [](io_thread& home) { return std::make_unique<pread_io>(home); });
    std::uint64_t allocated = 0;
    {
      worker_pool pool("test", 1, io_thread::max_tasks);
      scope tasks(io.executor());
      int got = 0;
      bool refused = false;
      asio::post(io.context(), [&] {
        allocations::arm(n, false);
        try {
          tasks.spawn(compute(&io, &pool, &got));
        } catch (const std::bad_alloc&) {
          refused = true;
        }
      });
      bool begun = false;
      sim.run_until([&] { return std::exchange(begun, true) && tasks.running() == 0; });
      allocated = allocations::disarm();
      EXPECT_TRUE(got == 42 || refused || tasks.first_thrown() != nullptr);
    }
    return allocated;
  });
}

sample with_field(const char* extension, std::string_view content) {
  sample s{.key = "k", .fields = {}, .where = {}, .url = std::make_shared<std::string>("u")};
  s.fields.push_back({extension, owned_bytes(std::string(content))});
  return s;
}

// A document read half-way is given up without memory.
TEST(OutOfMemory, ADocumentIsReadOrGivenUp) {
  using namespace std::string_view_literals;
  constexpr auto packed = "\x81\xa1\x61\x93\x01\xa1\x78\x81\xa1\x62\xc4\x02\x01\x02"sv;
  constexpr auto cbor = "\xa1\x61\x61\x83\x01\x61\x78\xa1\x61\x62\x42\x01\x02"sv;
  const std::string index = R"({"wids_version":1,"name":"n","shardlist":[
    {"url":"a.tar","nsamples":3},{"url":"b.tar","nsamples":4,"filesize":10}],
    "datasets":[{"name":"m","shardlist":[{"url":"c.tar","nsamples":1}]}]})";
  const sample labelled = with_field("json", R"({"a":{"b":[{"c":1}],"label":7}})");
  const std::vector<std::function<bool()>> reads = {
      [&] { return parse_index(index, "/d/i.json", "", nullptr).has_value(); },
      [&] { return label_of(labelled, "json:a.label").has_value(); },
      [&] {
        return decode_fields(with_field("json", R"({"a":[1,"x",{"b":[2,[]]}]})")).has_value();
      },
      [&] { return decode_fields(with_field("mp", packed)).has_value(); },
      [&] { return decode_fields(with_field("cbor", cbor)).has_value(); },
  };
  for (std::size_t i = 0; i < reads.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(reads[i]());
    for (const bool for_ever : {false, true}) {
      fail_each_allocation([&](std::uint64_t n) {
        bool is_read = false;
        const std::int64_t before = allocations::live();
        allocations::arm(n, for_ever);
        try {
          is_read = reads[i]();
        } catch (const std::bad_alloc&) {
        }
        const std::uint64_t allocated = allocations::disarm();
        EXPECT_LE(allocations::live(), before);
        EXPECT_TRUE(is_read || allocated >= n);
        return allocated;
      });
    }
  }
}

// Whatever a run lacked memory for, it holds nothing (places at a disk, descriptors, the budget)
// that a later run of the same engine would wait for.
TEST(OutOfMemory, ALaterRunHasAllThatItNeeds) {
  simulator sim(3);
  sim.files.put("/data/a.tar", text_shard(0, 9, 3000));
  sim.files.put("/data/b.tar", text_shard(100, 7, 3000));
  engine_options options;
  options.cpu_threads = 1;
  options.memory_bytes = 64_MiB;
  options.io = io_backend::pread;
  options.source.chunk_bytes = 8_KiB;
  options.source.direct = direct_reads::never;
  for (const int serialize : {0, 1}) {
    SCOPED_TRACE(serialize);
    options.source.serialize = serialize;
    options.source.read_depth = 2;
    engine eng(options);
    const auto all = interleaved(shards({"/data/a.tar", "/data/b.tar"}, {.lanes = 2}) | untar() |
                                 group_by_key());
    std::uint64_t place = 0;
    constexpr std::uint64_t far_too_many = 20'000;
    for (std::uint64_t n = 1; n < far_too_many; ++n) {
      if (!is_taken(place++)) continue;
      SCOPED_TRACE(n);
      bool failed = false;
      allocations::arm(n, false);
      try {
        auto data = eng.run(all);
        while (data.next()) {
        }
      } catch (const failure&) {
        failed = true;
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      const std::uint64_t allocated = allocations::disarm();
      auto later = eng.run(all);
      int given = 0;
      while (later.next()) ++given;
      ASSERT_EQ(given, 16);
      if (allocated < n) {
        EXPECT_FALSE(failed);
        break;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::testing
