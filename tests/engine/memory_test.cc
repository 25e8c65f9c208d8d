#include "engine/memory/memory.h"
#include "engine/threads/io_thread.h"

#include <gtest/gtest.h>

#include "engine/base/random.h"
#include "engine/base/units.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/threads/runtime.h"
#include "tests/support/spine.h"

namespace millrace {
namespace {

using testing::run_on;
using testing::settle;

class MemoryShare : public ::testing::Test {
 protected:
  runtime threads_{{.cpu_threads = 2}};
  std::shared_ptr<memory_share> share_ =
      std::make_shared<memory_share>("test", 8_MiB, default_host_allocator());
};

awaitable<void> take(std::shared_ptr<memory_share> share, std::size_t size, int who,
                     std::vector<int>* order, std::vector<buffer>* kept) {
  auto got = co_await share->acquire(size);
  order->push_back(who);
  if (got) kept->push_back(std::move(*got));
}

TEST_F(MemoryShare, ServesWaitersFirstComeFirstServedWhateverTheirSize) {
  std::vector<int> order;
  std::vector<buffer> kept;
  buffer whole = share_->try_acquire(8_MiB);
  ASSERT_TRUE(whole);
  scope tasks(threads_.io(0).executor());
  asio::post(threads_.io(0).context(), [&] {
    tasks.spawn(take(share_, 6_MiB, 1, &order, &kept));
    tasks.spawn(take(share_, 1_MiB, 2, &order, &kept));  // would fit beside a smaller first one
  });
  settle(threads_.io(0));
  EXPECT_TRUE(order.empty());
  whole = buffer();  // any thread may let go
  run_on(threads_.io(0), tasks.join());
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_EQ(share_->in_use(), 7_MiB);
}

// Whoever waits for memory does not get what is only put back.
TEST_F(MemoryShare, WhatIsPutBackStaysReserved) {
  auto reserved = run_on(threads_.io(0), share_->reserve(8_MiB));
  ASSERT_TRUE(reserved);
  std::vector<int> order;
  std::vector<buffer> kept;
  scope tasks(threads_.io(0).executor());
  asio::post(threads_.io(0).context(), [&] { tasks.spawn(take(share_, 1, 1, &order, &kept)); });
  settle(threads_.io(0));
  for (int i = 0; i < 3; ++i) {
    buffer large = reserved->take(6_MiB);
    buffer small = reserved->take(100);
    reserved->put_back(std::move(large));
    reserved->put_back(std::move(small));
    settle(threads_.io(0));
    EXPECT_EQ(reserved->left(), 8_MiB);
    EXPECT_EQ(share_->in_use(), 8_MiB);
    EXPECT_TRUE(order.empty());
  }
  buffer elsewhere = reserved->take(1_MiB);
  reserved->put_back(elsewhere);  // somebody may still read it
  EXPECT_EQ(reserved->left(), 7_MiB);
  elsewhere = {};
  reserved = memory_reservation();
  run_on(threads_.io(0), tasks.join());
  EXPECT_EQ(share_->in_use(), 1U);
}

TEST_F(MemoryShare, RefusesWhatCouldNeverBeMet) {
  const auto got = run_on(threads_.io(0), share_->acquire(9_MiB));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind(), errc::no_memory);
  EXPECT_FALSE(got.error().is_skippable());
}

TEST_F(MemoryShare, AStoppedWaiterLeavesTheQueue) {
  std::vector<int> order;
  std::vector<buffer> kept;
  buffer whole = share_->try_acquire(8_MiB);
  scope first(threads_.io(0).executor());
  scope second(threads_.io(0).executor());
  asio::post(threads_.io(0).context(), [&] {
    first.spawn(take(share_, 8_MiB, 1, &order, &kept));
    second.spawn(take(share_, 1_MiB, 2, &order, &kept));
  });
  settle(threads_.io(0));
  asio::post(threads_.io(0).context(), [&] { first.stop(); });
  run_on(threads_.io(0), first.join());
  whole = buffer();
  run_on(threads_.io(0), second.join());
  EXPECT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept.front().size(), 1_MiB);
}

TEST_F(MemoryShare, AStoppedWaiterLetsThoseBehindItIn) {
  std::vector<int> order;
  std::vector<buffer> kept;
  const buffer most = share_->try_acquire(5_MiB);
  scope first(threads_.io(0).executor());
  scope second(threads_.io(0).executor());
  asio::post(threads_.io(0).context(), [&] {
    first.spawn(take(share_, 4_MiB, 1, &order, &kept));
    second.spawn(take(share_, 2_MiB, 2, &order, &kept));
  });
  settle(threads_.io(0));
  asio::post(threads_.io(0).context(), [&] { first.stop(); });
  run_on(threads_.io(0), first.join());
  run_on(threads_.io(0), second.join());  // nothing was given back
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept.front().size(), 2_MiB);
}

// Takes pieces and keeps them until there are `count`.
awaitable<result<void>> gather(std::shared_ptr<memory_share> share, std::string name,
                               std::size_t size, int count) {
  const auto who = std::make_shared<memory_holder>(share, std::move(name));
  for (int i = 0; i < count; ++i) {
    auto got = co_await share->acquire(size, who);
    if (!got) co_return got.error();
    who->keep(std::move(*got).freeze(size));
    co_await asio::post(co_await this_executor, no_throw);
  }
  co_return result<void>();
}

TEST_F(MemoryShare, AWaitForMemoryThatTheWaiterKeepsIsAnErrorAtOnce) {
  EXPECT_TRUE(run_on(threads_.io(0), gather(share_, "a block", 2_MiB, 4)));
  const auto got = run_on(threads_.io(0), gather(share_, "a block", 2_MiB, 5));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind(), errc::no_memory);
  EXPECT_NE(got.error().message().find("a block keeps 8.0 MiB"), std::string::npos)
      << got.error().message();
  EXPECT_EQ(share_->in_use(), 0U);
}

awaitable<void> gather_into(std::shared_ptr<memory_share> share, std::string name, std::size_t size,
                            int count, std::vector<result<void>>* out) {
  out->push_back(co_await gather(std::move(share), std::move(name), size, count));
}

TEST_F(MemoryShare, ACycleOfTwoEndsOneOfThem) {
  std::vector<result<void>> out;
  scope tasks(threads_.io(0).executor());
  asio::post(threads_.io(0).context(), [&] {
    tasks.spawn(gather_into(share_, "one", 1_MiB, 5, &out));
    tasks.spawn(gather_into(share_, "two", 1_MiB, 5, &out));
  });
  settle(threads_.io(0));
  run_on(threads_.io(0), tasks.join());
  ASSERT_EQ(out.size(), 2U);
  EXPECT_NE(bool(out[0]), bool(out[1]));
  const auto& failed = out[0] ? out[1] : out[0];
  EXPECT_NE(failed.error().message().find("one keeps"), std::string::npos)
      << failed.error().message();
  EXPECT_NE(failed.error().message().find("two keeps"), std::string::npos);
}

TEST_F(MemoryShare, WhoKeepsNothingIsNotToBlame) {
  std::vector<result<void>> out;
  std::vector<buffer> kept;
  std::vector<int> order;
  scope tasks(threads_.io(0).executor());
  buffer some = share_->try_acquire(4_MiB);
  asio::post(threads_.io(0).context(), [&] {
    tasks.spawn(gather_into(share_, "one", 1_MiB, 9, &out));
    tasks.spawn(take(share_, 8_MiB, 1, &order, &kept));
  });
  settle(threads_.io(0), 20);
  EXPECT_TRUE(out.empty());  // the four may come back
  some = {};
  run_on(threads_.io(0), tasks.join());
  ASSERT_EQ(out.size(), 1U);
  EXPECT_FALSE(out[0]);
  EXPECT_EQ(kept.size(), 1U);
}

TEST_F(MemoryShare, NoErrorWhileAnybodyElseHoldsAny) {
  std::vector<result<void>> out;
  scope tasks(threads_.io(0).executor());
  buffer other = share_->try_acquire(1);  // a byte that may come back is doubt enough
  asio::post(threads_.io(0).context(),
             [&] { tasks.spawn(gather_into(share_, "one", 2_MiB, 5, &out)); });
  settle(threads_.io(0), 20);
  EXPECT_TRUE(out.empty());
  other = {};
  run_on(threads_.io(0), tasks.join());
  ASSERT_EQ(out.size(), 1U);
  EXPECT_FALSE(out[0]);
}

// What is kept is another's memory, slices of one block, or let go: none of it counts twice.
TEST_F(MemoryShare, CountsBlocksOfTheShareOnce) {
  const auto who = std::make_shared<memory_holder>(share_, "slices");
  buffer block = share_->try_acquire(6_MiB);
  const bytes whole = std::move(block).freeze(6_MiB);
  for (std::size_t i = 0; i < 6; ++i) who->keep(whole.slice(i << 20, 1 << 20));
  who->keep(owned_bytes(std::string(8 << 20, 'x')));
  buffer rest = share_->try_acquire(1_MiB);
  auto waits = spawn_on(threads_.io(0).executor(), share_->acquire(2_MiB, who));
  settle(threads_.io(0));
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  rest = {};
  EXPECT_TRUE(waits.get());
  who->let_go();
  EXPECT_EQ(share_->in_use(), 6_MiB);  // `whole`
}

// Tasks that gather in any order and let go at any time: all of them end, and none by an error
// where there is enough for all.
awaitable<void> gather_slowly(std::shared_ptr<memory_share> share, std::uint64_t seed, int count,
                              std::size_t* done, std::size_t* failed) {
  random_stream random(seed, purpose::stage);
  const auto who = std::make_shared<memory_holder>(share, "task");
  std::vector<bytes> pieces;
  for (int i = 0; i < count; ++i) {
    const std::size_t size = 64_KiB * (1 + random.below(4));
    auto got = co_await share->acquire(size, who);
    if (!got) {
      ++*failed;
      co_return;
    }
    bytes piece = std::move(*got).freeze(size);
    if (random.below(4) == 0) continue;  // not needed
    who->keep(piece);
    pieces.push_back(std::move(piece));
    if (random.below(3) == 0) co_await asio::post(co_await this_executor, no_throw);
    if (random.below(5) == 0) {
      who->let_go();
      pieces.clear();
    }
  }
  ++*done;
}

TEST_F(MemoryShare, ManyHoldersNeverStandStill) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::size_t limit = 256_KiB * (1 + seed % 16);
    const auto share = std::make_shared<memory_share>("test", limit, default_host_allocator());
    scope tasks(threads_.io(0).executor());
    std::size_t done = 0;
    std::size_t failed = 0;
    asio::post(threads_.io(0).context(), [&] {
      for (std::uint64_t i = 0; i < 4; ++i) {
        tasks.spawn(gather_slowly(share, seed * 4 + i, 6, &done, &failed));
      }
    });
    settle(threads_.io(0));
    run_on(threads_.io(0), tasks.join());  // the net: a wait for ever hangs here
    EXPECT_EQ(done + failed, 4U) << seed;
    EXPECT_EQ(share->in_use(), 0U) << seed;
    if (limit >= 6 * 256_KiB) {
      EXPECT_LT(failed, 4U) << seed;  // one at least has all to itself in the end
    }
    if (limit >= 24 * 256_KiB) {
      EXPECT_EQ(failed, 0U) << seed;
    }
  }
}

TEST_F(MemoryShare, GivesTheMostRecentlyFreedBlockFirst) {
  buffer a = share_->try_acquire(2_MiB);
  buffer b = share_->try_acquire(2_MiB);
  const std::byte* last = b.data();
  a = buffer();
  b = buffer();
  EXPECT_EQ(share_->try_acquire(2_MiB).data(), last);
}

TEST_F(MemoryShare, IdleBlocksOfAnotherSizeMakeRoom) {
  {
    const buffer a = share_->try_acquire(6_MiB);
  }
  EXPECT_EQ(share_->in_use(), 0U);
  EXPECT_TRUE(share_->try_acquire(7_MiB));
}

TEST(Bytes, SlicesKeepTheirBlockAlive) {
  auto share = std::make_shared<memory_share>("test", 1_MiB, default_host_allocator());
  bytes tail;
  {
    buffer b = share->try_acquire(100);
    std::fill_n(b.data(), 100, std::byte{'x'});
    tail = std::move(b).freeze(100).slice(90);
  }
  EXPECT_EQ(tail.text(), std::string(10, 'x'));
  EXPECT_EQ(share->in_use(), 100U);
  tail = bytes();
  EXPECT_EQ(share->in_use(), 0U);
}

TEST(MemoryPlan, NamesTheFigureThatWouldDo) {
  memory_plan plan(10_MiB);
  const auto reads = plan.share("reads", 8_MiB, 20_MiB);
  const auto batches = plan.share("batches", 4_MiB, 4_MiB);
  const auto divided = plan.divide();
  ASSERT_FALSE(divided);
  EXPECT_EQ(divided.error().kind(), errc::no_memory);
  EXPECT_NE(divided.error().message().find("MILLRACE_MEMORY=12M"), std::string::npos)
      << divided.error().message();
}

TEST(MemoryPlan, NamesManySharesInOneShortLine) {
  memory_plan plan(10_MiB);
  for (int lane = 0; lane < 500; ++lane) {
    for (const char* what : {"reads", "members", "read again"}) {
      plan.share(fmt::format("lane {} {}", lane, what), 1_MiB, 1_MiB);
    }
  }
  plan.share("shuffle", 600_MiB, 600_MiB);
  for (char other = 'a'; other <= 'z'; ++other) plan.share(std::string(100, other), 1, 1);
  const std::string text = plan.divide().error().message();
  EXPECT_NE(text.find("(shuffle 600.0 MiB, lane * members 500.0 MiB in 500 shares, lane * read "
                      "again 500.0 MiB in 500 shares, "),
            std::string::npos)
      << text;
  EXPECT_LT(text.size(), 1200U) << text;
}

TEST(MemoryPlan, NamesSharesThatWaitAndGetNothingBack) {
  runtime threads({.cpu_threads = 1});
  memory_plan plan(20_MiB);
  const auto share = plan.share("reads", 1_MiB, 1_MiB);
  ASSERT_TRUE(plan.divide());
  buffer all = share->try_acquire(1_MiB);
  auto waits = spawn_on(threads.io(0).executor(), share->acquire(4096));
  settle(threads.io(0));
  EXPECT_EQ(plan.starved(), "");  // it may have come this moment
  EXPECT_EQ(plan.starved(), "reads 1.0 MiB");
  all = {};
  EXPECT_TRUE(waits.get());
  EXPECT_EQ(plan.starved(), "");
  EXPECT_EQ(plan.starved(), "");  // nothing came back, but nobody waits
}

TEST(MemoryPlan, SharesTheSpareByWhatIsWanted) {
  memory_plan plan(20_MiB);
  const auto a = plan.share("a", 2_MiB, 10_MiB);
  const auto b = plan.share("b", 2_MiB, 26_MiB);
  ASSERT_TRUE(plan.divide());
  EXPECT_EQ(a->limit(), 6_MiB);
  EXPECT_EQ(b->limit(), 14_MiB);
}

TEST(ParseBytes, TakesUnitsOf1024) {
  EXPECT_EQ(parse_bytes("512").value(), 512U);
  EXPECT_EQ(parse_bytes("4K").value(), 4096U);
  EXPECT_EQ(parse_bytes("2GiB").value(), 2_GiB);
  EXPECT_EQ(parse_bytes("2m").value(), 2_MiB);
  EXPECT_EQ(parse_bytes("1.5G").value(), 1_GiB + 512_MiB);
  for (const char* wrong :
       {"", "x", "1X", "1.5", "1.5e9G", "1.G", "1.-5G", "-1", "99999999999999T", "1KK"}) {
    EXPECT_FALSE(parse_bytes(wrong)) << wrong;
  }
}

TEST(FormatBytes, HasAUnitForEverySize) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1_KiB), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536_MiB), "1.5 GiB");
  EXPECT_EQ(format_bytes(1024_GiB), "1.0 TiB");
  EXPECT_EQ(format_bytes(1024 * 1024_GiB), "1.0 PiB");
  EXPECT_EQ(format_bytes(~std::size_t{0}), "16.0 EiB");
}

}  // namespace
}  // namespace millrace
