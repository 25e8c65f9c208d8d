#pragma once

#include <map>
#include <memory>
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
};

// Connections by what they lead to: at most so many at once for each, those given back kept for the
// next request until they have been idle too long. The least idle is given out first. Who waits for
// a place is served by priority (the lowest first), then in order. One I/O thread.
class connection_pool : public std::enable_shared_from_this<connection_pool> {
 public:
  // `time` outlives the pool.
  connection_pool(time_source& time, int most_per_origin, steady_clock::duration idle_limit)
      : time_(time), most_(most_per_origin), idle_limit_(idle_limit) {}

  // A place, and the connection in it; ends both when destroyed.
  class lease {
   public:
    lease(std::shared_ptr<connection_pool> pool, std::string key)
        : pool_(std::move(pool)), key_(std::move(key)) {}
    lease(lease&&) noexcept = default;
    lease& operator=(lease&&) = delete;
    ~lease();

    pooled_connection connection;  // without a stream: to be made
    // Keeps the connection for the next one who wants it.
    void give_back();

   private:
    std::shared_ptr<connection_pool> pool_;
    std::string key_;
  };

  // `fresh`: without a connection that was kept.
  awaitable<lease> acquire(std::string key, int priority, bool fresh);

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

  time_source& time_;
  int most_;
  steady_clock::duration idle_limit_;
  std::map<std::string, origin> origins_;  // references stay valid
  std::uint64_t next_ticket_ = 0;
};

}  // namespace millrace
