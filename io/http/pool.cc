#include "io/http/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <mutex>

#include "engine/base/process_wide.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

// Descriptors of the rest of the process become free without notice.
constexpr auto looked_again_after = 100ms;

// The pools that hold connections, in the order in which they first did: descriptors belong to the
// process, pools to I/O threads.
struct pool_list {
  struct entry {
    asio::any_io_executor executor;
    std::weak_ptr<connection_pool> pool;
  };
  std::mutex mutex;
  std::map<std::uint64_t, entry> entries;
  std::uint64_t next = 0;
  std::atomic<int> lacking = 0;  // requests that wait for a descriptor
};

pool_list& all_pools() {
  return process_wide<pool_list>();
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

// Waits in an origin's line; also leaves it if its coroutine is stopped.
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

connection_pool::lease::lease(lease&& other) noexcept
    : connection(std::move(other.connection)),
      pool_(std::move(other.pool_)),
      at_(other.at_),
      counts_(other.counts_),
      paused_(std::exchange(other.paused_, std::nullopt)) {}

connection_pool::lease::~lease() {
  if (!pool_) return;
  connection.stream.reset();
  if (paused_) at_->paused.erase(*paused_);
  if (counts_) --at_->leased;
  ++at_->moves;
  wake_first(*at_);
  pool_->lacks_descriptor_ = false;
  if (pool_->one_ended_) pool_->one_ended_->notify_all();
}

void connection_pool::lease::give_back() {
  if (all_pools().lacking > 0) return;
  at_->idle.push_back({std::move(connection), pool_->time_.now()});
}

void connection_pool::lease::pause(condition* wake) {
  ++at_->moves;
  if (wake != nullptr) {
    paused_ = at_->paused.insert(at_->paused.end(), wake);
    return;
  }
  counts_ = false;
  --at_->leased;
  wake_first(*at_);
}

void connection_pool::lease::resume() {
  ++at_->moves;
  if (!counts_) ++at_->leased;
  counts_ = true;
  if (!paused_) return;
  at_->paused.erase(*paused_);
  paused_.reset();
  pool_->wake_wanted(*at_);  // other paused ones in its place
}

bool connection_pool::lease::is_wanted() const {
  return paused_ && pool_->wanted(*at_) > 0;
}

void connection_pool::lease::moved() {
  ++at_->moves;
}

std::size_t connection_pool::wanted(const origin& at) const {
  const auto free = static_cast<std::size_t>(std::max(0, most_ - at.leased));
  const std::size_t in_line = at.waiting.size() - std::min(at.waiting.size(), free);
  return std::max<std::size_t>(in_line, lacks_descriptor_ ? 1 : 0);
}

void connection_pool::wake_wanted(origin& at) const {
  std::size_t n = wanted(at);
  for (auto it = at.paused.begin(); n > 0 && it != at.paused.end(); ++it, --n) (*it)->notify_all();
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

// A last resort: by the rule in pool.h, a place comes free before this fails.
awaitable<result<void>> connection_pool::wait_for_place(place_in_line& mine, const origin& at) {
  std::uint64_t seen = at.moves;
  auto next_look = time_.now() + patience_;
  int quiet = 0;  // in a row; one alone may be a process that was stopped meanwhile
  while (at.leased >= most_ || !mine.is_first()) {
    if (time_.now() >= next_look) {
      quiet = at.moves == seen ? quiet + 1 : 0;
      if (quiet == 2) {
        co_return error(
            errc::timed_out,
            fmt::format("no connection came free: {} are open, and nothing has moved "
                        "on them for {} s",
                        at.leased,
                        std::chrono::duration_cast<std::chrono::seconds>(2 * patience_).count()))
            .hint(
                "raise http_options.connections (MILLRACE_HTTP_CONNECTIONS), or read fewer "
                "objects at once");
      }
      seen = at.moves;
      next_look = time_.now() + patience_;
    }
    co_await first_of(mine.wait(), time_.sleep_until(next_look));
  }
  co_return result<void>();
}

awaitable<result<connection_pool::lease>> connection_pool::acquire(std::string key, int priority,
                                                                   bool fresh) {
  enter_list(co_await this_executor);
  drop_overdue();
  // held over co_await: an origin is never erased
  origin& at = origins_[key];
  if (at.leased >= most_ || !at.waiting.empty()) {
    const std::uint64_t number = next_ticket_++;
    const auto rank = number + static_cast<std::uint64_t>(std::max(0, priority)) * most_passed;
    place_in_line mine(at, {rank, number}, co_await this_executor);
    wake_wanted(at);
    if (const auto found = co_await wait_for_place(mine, at); !found) co_return found.error();
    ++at.leased;
  } else {
    ++at.leased;
  }
  ++at.moves;
  lease taken(shared_from_this(), at);
  while (!fresh && !at.idle.empty()) {
    pooled_connection last = std::move(at.idle.back().connection);
    at.idle.pop_back();
    // Skips a connection that the server has ended, or on which it has sent unrequested bytes.
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
  if (!one_ended_) one_ended_.emplace(co_await this_executor);
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
  lacks_descriptor_ = true;
  for (auto& [key, at] : origins_) {
    if (at.paused.empty()) continue;
    at.paused.front()->notify_all();
    break;
  }
  co_await first_of(one_ended_->wait(),
                    time_.sleep_until(std::min(deadline, time_.now() + looked_again_after)));
  lacks_descriptor_ = false;
}

std::size_t connection_pool::idle_connections() const {
  std::size_t n = 0;
  for (const auto& [key, at] : origins_) n += at.idle.size();
  return n;
}

}  // namespace millrace
