#include "io/http/pool.h"

#include <boost/asio/this_coro.hpp>

namespace millrace {

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
}

void connection_pool::lease::give_back() {
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
  drop_overdue();
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

std::size_t connection_pool::idle_connections() const {
  std::size_t n = 0;
  for (const auto& [key, at] : origins_) n += at.idle.size();
  return n;
}

}  // namespace millrace
