// More readers, and more parts of an object, than connections: whatever the server is like, and in
// whatever order its answers arrive, each reader gets all its bytes in the end.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "io/http/pool.h"
#include "tests/support/numbered.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::answer;
using testing::numbered;
using testing::sent;

struct lock_step_reader {
  std::shared_ptr<memory_share> memory;
  std::unique_ptr<byte_source> source;
  std::string content;
  std::optional<error> failed;
  bool ended = false;
};

// One piece of each object in turn, like a consumer of lanes: while it waits for one object, it
// takes nothing from the others.
awaitable<void> read_in_turns(testing::simulated_client* client,
                              std::vector<lock_step_reader>* readers, int* most_open) {
  const auto stack = client->make_stack();
  scope tasks(client->context.get_executor());
  for (lock_step_reader& r : *readers) {
    r.memory =
        std::make_shared<memory_share>("test", client->memory_bytes, default_host_allocator());
    source_context from{client->threads, client->threads.io(0), tasks,
                        r.memory,        client->source,        client->counters};
    r.source = http_object_source(from, stack, http_object(parse_url("http://h/a").value()), {});
  }
  for (std::size_t left = readers->size(); left > 0;) {
    for (std::size_t i = 0; i < readers->size(); ++i) {
      lock_step_reader& r = (*readers)[i];  // held over co_await: the list does not change
      if (r.ended) continue;
      auto piece = co_await r.source->read();
      *most_open = std::max(*most_open, *client->net->open);
      if (!piece) r.failed = piece.error();
      if (piece && !piece->empty()) {
        r.content += piece->text();
        continue;
      }
      r.ended = true;
      --left;
    }
  }
  for (lock_step_reader& r : *readers) r.source.reset();
  tasks.stop();
  co_await tasks.join();
}

enum class naming { strong, date, weak, none, no_ranges };

std::string naming_fields(naming what) {
  switch (what) {
    case naming::strong:
    case naming::no_ranges:
      return "ETag: \"v1\"\r\n";
    case naming::date:
      return "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n";
    case naming::weak:
      return "ETag: W/\"v1\"\r\n";
    case naming::none:
      break;
  }
  return "";
}

class FewConnections {
 public:
  explicit FewConnections(std::uint64_t seed) : random_(seed, purpose::fake_data) {
    client_.net->unsettle(seed);
    client_.options.connections = 1 + below(4);
    client_.options.split = 1 + below(6);
    client_.options.part_bytes = 64_KiB << below(3);
    client_.options.backoff = 10ms;
    client_.source.read_ahead = 1 + below(4);
    client_.source.chunk_bytes = 16_KiB << below(3);
    client_.memory_bytes = 512_KiB << below(3);
    server_ = static_cast<naming>(below(5));
    cuts_ = below(3) == 0;
    client_.net->serve("10.0.0.1", [this](const std::string& r) { return answered(r); });
  }

  void run() {
    SCOPED_TRACE(fmt::format("{} readers, {} connections, {} parts, server {}, cuts {}",
                             readers_.size(), client_.options.connections, *client_.options.split,
                             static_cast<int>(server_), cuts_));
    client_.time.run(read_in_turns(&client_, &readers_, &most_open_), 2h);
    const bool resumes = server_ == naming::strong || server_ == naming::date;
    for (const lock_step_reader& r : readers_) {
      EXPECT_TRUE(content_.starts_with(r.content));
      EXPECT_EQ(r.memory->in_use(), 0U);
      // An object without a version is not resumed after bytes were given out.
      if (r.failed && cuts_ && !resumes && server_ != naming::no_ranges) continue;
      EXPECT_FALSE(r.failed) << r.failed->message();
      EXPECT_EQ(r.content.size(), content_.size());
    }
    if (resumes && !cuts_) EXPECT_LE(most_open_, client_.options.connections);
  }

 private:
  int below(int n) { return static_cast<int>(random_.uniform() * n); }

  std::vector<sent> answered(const std::string& request) {
    const bool whole = server_ == naming::no_ranges;
    auto pieces = answer(whole ? "" : request, content_, 300us, {}, naming_fields(server_));
    const std::string range = testing::field_of(request, "Range");
    if (cuts_ && seen_[range]++ == 0 && below(2) == 0) {
      pieces.resize(1 + static_cast<std::size_t>(below(static_cast<int>(pieces.size()))));
      pieces.back().bytes.resize(pieces.back().bytes.size() / 2);
      pieces.back().ends = sent::end::fin;
    }
    return pieces;
  }

  random_stream random_;
  testing::simulated_client client_;
  naming server_ = naming::strong;
  bool cuts_ = false;
  std::map<std::string, int> seen_;
  std::string content_ = numbered(1'200'000 + 1000 * static_cast<std::size_t>(below(50)));
  std::vector<lock_step_reader> readers_{static_cast<std::size_t>(1 + below(9))};
  int most_open_ = 0;
};

TEST(HttpConnections, EachOfManyReadersEndsWithFewConnections) {
  for (const std::uint64_t seed : testing::seeds(60)) {
    SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
    FewConnections one(seed);
    ASSERT_NO_THROW(one.run());
    if (::testing::Test::HasFailure()) break;
  }
}

// A part that is fetched again keeps its memory: the parts after it have all the rest.
TEST(HttpConnections, PartsThatAreCutAreFetchedAgainWithFewerConnectionsThanParts) {
  const std::string content = numbered(8 << 20);
  for (int i = 0; i < 10; ++i) {
    const int connections = std::array{1, 2, 4, 7, 8}[static_cast<std::size_t>(i) / 2];
    const bool is_tight = i % 2 == 1;  // enough for only two parts
    SCOPED_TRACE(fmt::format("{} connections, tight {}", connections, is_tight));
    testing::simulated_client client;
    std::map<std::string, int> seen;
    client.net->serve("10.0.0.1", [&](const std::string& request) {
      auto pieces = answer(request, content, 100us, {}, naming_fields(naming::weak));
      if (seen[testing::field_of(request, "Range")]++ > 0) return pieces;
      const auto range = testing::range_of(request, content.size());
      pieces.resize(range && range->begin > 0 ? 2 : 1);
      pieces.back().ends = sent::end::fin;
      return pieces;
    });
    client.options.split = 8;
    client.options.part_bytes = 512_KiB;
    client.options.connections = connections;
    client.options.backoff = 2s;
    client.source.chunk_bytes = 32_KiB;
    client.memory_bytes = is_tight ? 1_MiB : 6_MiB;
    testing::outcome out;
    ASSERT_NO_THROW(out = client.read("http://h/a", {}, 1h));
    EXPECT_FALSE(out.failed) << out.failed->message();
    EXPECT_TRUE(out.content == content);
    EXPECT_EQ(client.left_in_memory, 0U);
  }
}

class ConnectionPoolLine : public ::testing::Test {
 protected:
  using lease = connection_pool::lease;
  static constexpr const char* key = "http://h";

  awaitable<void> take(int priority, std::vector<int>* order) {
    auto got = co_await pool_->acquire(key, priority, false);
    if (got) order->push_back(priority);
    if (!got) failed_ = got.error();
  }
  awaitable<void> wait_while_held(bool moves) {
    std::vector<int> order;
    scope tasks(context_.get_executor());
    {
      auto held = co_await pool_->acquire(key, 0, false);
      tasks.spawn(take(0, &order));
      for (int i = 0; i < 10 && !failed_; ++i) {
        co_await time_.sleep(1min);
        if (moves) held->moved();
      }
    }
    co_await tasks.join();
  }
  awaitable<void> pass_one(std::vector<int>* order) {
    scope tasks(context_.get_executor());
    {
      auto held = co_await pool_->acquire(key, 0, false);
      tasks.spawn(take(1, order));
      for (std::uint64_t i = 0; i < 2 * connection_pool::most_passed; ++i)
        tasks.spawn(take(0, order));
    }
    co_await tasks.join();
  }
  awaitable<void> lack_a_descriptor() {
    auto held = co_await pool_->acquire(key, 0, false);
    condition wake(context_.get_executor());
    held->pause(&wake);
    EXPECT_FALSE(held->is_wanted());
    scope tasks(context_.get_executor());
    tasks.spawn(pool_->until_one_may_be_free(time_.now() + 1min));
    EXPECT_TRUE(held->is_wanted());
    co_await tasks.join();
    EXPECT_FALSE(held->is_wanted());
    held->resume();
  }

  asio::io_context context_;
  testing::simulated_time time_{context_};
  std::shared_ptr<connection_pool> pool_ = std::make_shared<connection_pool>(time_, 1, 1h);
  std::optional<error> failed_;
};

TEST_F(ConnectionPoolLine, WhereNothingMovesTheWaitEndsAndNamesTheSetting) {
  time_.run(wait_while_held(false));
  ASSERT_TRUE(failed_);
  EXPECT_EQ(failed_->kind(), errc::timed_out);
  EXPECT_NE(failed_->message().find("MILLRACE_HTTP_CONNECTIONS"), std::string::npos);
}

TEST_F(ConnectionPoolLine, WhereSomethingMovesItGoesOn) {
  time_.run(wait_while_held(true));
  EXPECT_FALSE(failed_);
}

TEST_F(ConnectionPoolLine, NobodyIsPassedForEver) {
  std::vector<int> order;
  time_.run(pass_one(&order));
  const auto place = std::ranges::find(order, 1) - order.begin();
  EXPECT_GT(place, 0);
  EXPECT_LE(place, static_cast<std::ptrdiff_t>(connection_pool::most_passed));
}

TEST_F(ConnectionPoolLine, WhoLacksADescriptorGetsThatOfAPausedConnection) {
  time_.run(lack_a_descriptor());
}

}  // namespace
}  // namespace millrace
