// Pools of several I/O threads, which share the process's descriptors.
#include "io/http/pool.h"
#include "engine/coroutines/spawn_on.h"
#include "io/http/transport.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

namespace millrace {
namespace {

using namespace std::chrono_literals;

// A connection on which nothing happens.
class silent_stream final : public byte_stream {
 public:
  moved try_read(std::span<std::byte> /*into*/) override { return {0, asio::error::would_block}; }
  moved try_write(std::span<const std::byte> from) override { return {from.size(), {}}; }
  awaitable<error_code> wait(direction /*which*/, time_source::time_point /*deadline*/) override {
    co_return error_code();
  }
};

awaitable<void> use_connection(std::shared_ptr<connection_pool> pool) {
  auto lease = co_await pool->acquire("http://h", 0, false);
  lease->connection.stream = std::make_unique<silent_stream>();
  lease->give_back();
}

awaitable<void> lack_a_descriptor(std::shared_ptr<connection_pool> pool) {
  co_await pool->until_one_may_be_free(real_time().now() + 1h);
}

void run(asio::io_context& on, awaitable<void> what) {
  auto done = spawn_on(on.get_executor(), std::move(what));
  on.restart();
  on.run();
  done.get();
}

TEST(ConnectionPool, WhoLacksDescriptorsGetsThoseThatOthersKeep) {
  asio::io_context one;
  asio::io_context other;
  const auto keeps = std::make_shared<connection_pool>(real_time(), 4, 1h);
  const auto lacks = std::make_shared<connection_pool>(real_time(), 4, 1h);
  run(one, use_connection(keeps));
  EXPECT_EQ(keeps->idle_connections(), 1U);
  run(other, lack_a_descriptor(lacks));  // for a moment only: nothing reports that one is free
  one.restart();
  one.run();
  EXPECT_EQ(keeps->idle_connections(), 0U);
  run(one, use_connection(keeps));  // no pool lacks one any more
  EXPECT_EQ(keeps->idle_connections(), 1U);
}

TEST(ConnectionPool, APoolThatIsGoneIsNotAsked) {
  asio::io_context context;
  run(context, use_connection(std::make_shared<connection_pool>(real_time(), 4, 1h)));
  const auto lacks = std::make_shared<connection_pool>(real_time(), 4, 1h);
  run(context, use_connection(lacks));
  EXPECT_TRUE(lacks->drop_idle());
  run(context, lack_a_descriptor(lacks));
  EXPECT_FALSE(lacks->drop_idle());
}

}  // namespace
}  // namespace millrace
