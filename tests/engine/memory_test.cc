#include "engine/memory.h"

#include <gtest/gtest.h>

#include "engine/runtime.h"
#include "engine/scope.h"
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

TEST_F(MemoryShare, RefusesWhatCouldNeverBeMet) {
  const auto got = run_on(threads_.io(0), share_->acquire(9_MiB));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind(), errc::no_memory);
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

TEST(MemoryPlan, NamesSharesThatWaitAndGetNothingBack) {
  runtime threads({.cpu_threads = 1});
  memory_plan plan(20_MiB);
  const auto share = plan.share("reads", 1_MiB, 1_MiB);
  ASSERT_TRUE(plan.divide());
  buffer all = share->try_acquire(1_MiB);
  auto waits = asio::co_spawn(threads.io(0).executor(), share->acquire(4096), asio::use_future);
  settle(threads.io(0));
  EXPECT_EQ(plan.starved(), "");  // it may have come this moment
  EXPECT_EQ(plan.starved(), "reads (1.0 MiB)");
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
  for (const char* wrong : {"", "x", "1X", "1.5G", "-1", "99999999999999T", "1KK"}) {
    EXPECT_FALSE(parse_bytes(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace millrace
