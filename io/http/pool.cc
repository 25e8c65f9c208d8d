#include "io/http/pool.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <mutex>

namespace millrace {
namespace {

using namespace std::chrono_literals;

// Others' descriptors come free without a sign.
constexpr auto looked_again_after = 100ms;

// The pools that hold connections, in the order in which they began to: descriptors are the
// process's, and pools are the I/O threads'.
struct pool_list {
  struct entry {
    asio::any_io_executor executor;
    std::weak_ptr<connection_pool> pool;
  };
  std::mutex mutex;
  std::map<std::uint64_t, entry> entries;
  std::uint64_t next = 0;
  std::atomic<int> lacking = 0;  // who waits for a descriptor
};

pool_list& all_pools() {
  static pool_list list;
  return list;
}

}  // namespace

connection_pool::~connection_pool() {
  if (!in_list_) return;
  const std::scoped_lock lock(all_pools().mutex);
  all_pools().entries.erase(*in_list_);
}

void connection_pool::enter_list(const asio::any_io_executor& executor) {
  if (in_list_) return;
  const std::scoped_lock lock(all_pools().mutex);
  in_list_ = all_pools().next++;
  all_pools().entries.emplace(*in_list_, pool_list::entry{executor, weak_from_this()});
}

// Waits in an origin's line; leaves it also when its coroutine is stopped.
class connection_pool::place_in_line {
 public:
  place_in_line(origin& at, ticket t, const asio::any_io_executor& executor)
      : at_(at), ticket_(t), turn_(executor) {
    at_.waiting.emplace(ticket_, &turn_);
  }
  ~place_in_line() {
    at_.waiting.erase(ticket_);
    wake_first(at_);
  }
  place_in_line(const place_in_line&) = delete;
  place_in_line& operator=(const place_in_line&) = delete;

  bool is_first() const { return at_.waiting.begin()->first == ticket_; }
  awaitable<void> wait() { return turn_.wait(); }

 private:
  origin& at_;
  ticket ticket_;
  condition turn_;
};

connection_pool::lease::~lease() {
  if (!pool_) return;
  connection.stream.reset();
  origin& at = pool_->origins_.at(key_);
  --at.leased;
  wake_first(at);
  if (pool_->one_ended_) pool_->one_ended_->notify_all();
}

void connection_pool::lease::give_back() {
  if (all_pools().lacking > 0) return;
  auto& at = pool_->origins_.at(key_);
  at.idle.push_back({std::move(connection), pool_->time_.now()});
}

void connection_pool::wake_first(origin& at) {
  if (!at.waiting.empty()) at.waiting.begin()->second->notify_one();
}

void connection_pool::drop_overdue() {
  const auto now = time_.now();
  for (auto& [key, at] : origins_) {
    std::erase_if(at.idle, [&](const idle_connection& c) { return now - c.since > idle_limit_; });
  }
}

awaitable<connection_pool::lease> connection_pool::acquire(std::string key, int priority,
                                                           bool fresh) {
  enter_list(co_await asio::this_coro::executor);
  drop_overdue();
  // held over co_await: an origin is never erased
  origin& at = origins_[key];
  if (at.leased >= most_ || !at.waiting.empty()) {
    place_in_line mine(at, {priority, next_ticket_++}, co_await asio::this_coro::executor);
    while (at.leased >= most_ || !mine.is_first()) co_await mine.wait();
    ++at.leased;
  } else {
    ++at.leased;
  }
  lease taken(shared_from_this(), std::move(key));
  while (!fresh && !at.idle.empty()) {
    pooled_connection last = std::move(at.idle.back().connection);
    at.idle.pop_back();
    // A server that has ended the connection, or has sent what nobody asked for.
    std::byte any{};
    if (!last.pending.empty()) continue;
    if (last.stream->try_read({&any, 1}).failed != asio::error::would_block) continue;
    taken.connection = std::move(last);
    break;
  }
  co_return taken;
}

bool connection_pool::drop_idle() {
  bool any = false;
  for (auto& [key, at] : origins_) {
    any = any || !at.idle.empty();
    at.idle.clear();
  }
  return any;
}

awaitable<void> connection_pool::until_one_may_be_free(time_source::time_point deadline) {
  if (!one_ended_) one_ended_.emplace(co_await asio::this_coro::executor);
  struct mark {
    mark() { ++all_pools().lacking; }
    ~mark() { --all_pools().lacking; }
    mark(const mark&) = delete;
    mark& operator=(const mark&) = delete;
  } const lacking;
  {
    const std::scoped_lock lock(all_pools().mutex);
    for (const auto& [place, other] : all_pools().entries) {
      if (place == in_list_) continue;
      asio::post(other.executor, [pool = other.pool] {
        if (const auto there = pool.lock()) there->drop_idle();
      });
    }
  }
  co_await first_of(one_ended_->wait(),
                    time_.sleep_until(std::min(deadline, time_.now() + looked_again_after)));
}

std::size_t connection_pool::idle_connections() const {
  std::size_t n = 0;
  for (const auto& [key, at] : origins_) n += at.idle.size();
  return n;
}

}  // namespace millrace
