#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/time_source.h"
#include "io/http/transport.h"

namespace millrace {

// A connection and what was read from it beyond the answers so far.
struct pooled_connection {
  std::unique_ptr<byte_stream> stream;
  std::string pending;
  bool is_private = false;  // of its other end, where that is the server
};

// Connections by their end point: at most so many at once for each. Those given back are kept for
// the next request until they have been idle too long; the least idle is given out first. Waiters
// are served by priority (the lowest first), then in order. One I/O thread.
class connection_pool : public std::enable_shared_from_this<connection_pool> {
 public:
  // `time` outlives the pool.
  connection_pool(time_source& time, int most_per_origin, steady_clock::duration idle_limit)
      : time_(time), most_(most_per_origin), idle_limit_(idle_limit) {}
  ~connection_pool();
  connection_pool(const connection_pool&) = delete;
  connection_pool& operator=(const connection_pool&) = delete;

  // A place, and the connection in it; ends both when destroyed.
  class lease {
   public:
    lease(std::shared_ptr<connection_pool> pool, std::string key)
        : pool_(std::move(pool)), key_(std::move(key)) {}
    lease(lease&&) noexcept = default;
    lease& operator=(lease&&) = delete;
    ~lease();

    pooled_connection connection;  // without a stream: to be made
    // Keeps the connection for the next one who wants it, unless some pool lacks descriptors.
    void give_back();

   private:
    std::shared_ptr<connection_pool> pool_;
    std::string key_;
  };

  // `fresh`: without a connection that was kept.
  awaitable<lease> acquire(std::string key, int priority, bool fresh);

  // Closes idle connections; false where there were none.
  bool drop_idle();
  // Call when descriptors have run out: makes the pools of other I/O threads close their idle
  // connections, and waits until a lease of this one has ended, or for a moment; at most until
  // `deadline`.
  awaitable<void> until_one_may_be_free(time_source::time_point deadline);

  std::size_t idle_connections() const;

 private:
  using ticket = std::pair<int, std::uint64_t>;
  struct idle_connection {
    pooled_connection connection;
    time_source::time_point since;
  };
  struct origin {
    int leased = 0;
    std::vector<idle_connection> idle;  // the least idle last
    std::map<ticket, condition*> waiting;
  };
  class place_in_line;
  void drop_overdue();
  static void wake_first(origin& at);
  void enter_list(const asio::any_io_executor& executor);

  time_source& time_;
  int most_;
  steady_clock::duration idle_limit_;
  std::map<std::string, origin> origins_;  // references stay valid
  std::uint64_t next_ticket_ = 0;
  std::optional<condition> one_ended_;    // once somebody waits for it
  std::optional<std::uint64_t> in_list_;  // its place in the list of all pools
};

}  // namespace millrace
