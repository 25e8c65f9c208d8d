#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/time_source.h"
#include "io/http/transport.h"

namespace millrace {

// A connection, and the bytes that were read from it beyond the last answer.
struct pooled_connection {
  std::unique_ptr<byte_stream> stream;
  std::string pending;
  bool is_private = false;  // of the peer, if that is the server
};

// Connections by their end point, with a limit on those open at once for each. Returned connections
// are kept for the next request until they have been idle too long; the least idle is used first.
// Waiters are served by priority (lowest first), then in order. One I/O thread.
//
// No wait for a connection may depend on a request that itself waits for one: a reader whose next
// bytes come after that request's would wait forever. A place therefore counts against the limit
// only while its holder waits for the network, which deadlines bound. A holder that waits for
// anything else (room for what it reads, which a reader must first free) calls pause() first. It
// then either ends its connection as soon as is_wanted() or, if its transfer cannot be resumed,
// does not count until it continues. So whenever a request is in line, a place comes free after a
// bounded time. In line, at most `most_passed` requests of higher priority pass another one.
class connection_pool : public std::enable_shared_from_this<connection_pool> {
 public:
  // `time` outlives the pool.
  // `patience`: longer than the deadlines of holders of places.
  connection_pool(time_source& time, int most_per_origin, steady_clock::duration idle_limit,
                  steady_clock::duration patience = least_patience)
      : time_(time),
        most_(most_per_origin),
        idle_limit_(idle_limit),
        patience_(std::max(patience, least_patience)) {}
  ~connection_pool();
  connection_pool(const connection_pool&) = delete;
  connection_pool& operator=(const connection_pool&) = delete;

  static constexpr steady_clock::duration least_patience = std::chrono::seconds(60);
  static constexpr std::uint64_t most_passed = 1000;

 private:
  struct origin;

 public:
  // A place and its connection; ends both when destroyed.
  class lease {
   public:
    lease(std::shared_ptr<connection_pool> pool, origin& at) : pool_(std::move(pool)), at_(&at) {}
    lease(lease&& other) noexcept;
    lease& operator=(lease&&) = delete;
    ~lease();

    pooled_connection connection;  // without a stream: to be connected
    // Keeps the connection for the next request, unless a pool lacks descriptors.
    void give_back();

    // Call these around a wait for anything but the network. `wake` is notified when is_wanted()
    // may have become true, and outlives the pause. Null: the place does not count meanwhile.
    void pause(condition* wake);
    void resume();
    // Whether it is paused and a request waits for this connection to end.
    bool is_wanted() const;
    // Call when bytes have arrived: requests in line then wait with reason.
    void moved();

   private:
    std::shared_ptr<connection_pool> pool_;
    origin* at_;
    bool counts_ = true;
    std::optional<std::list<condition*>::iterator> paused_;
  };

  // `fresh`: without a kept connection. Fails with timed_out if no place has come free, and nothing
  // has moved on the open connections, for twice the pool's patience.
  awaitable<result<lease>> acquire(std::string key, int priority, bool fresh);

  // Closes idle connections; returns false if there were none.
  bool drop_idle();
  // Call when descriptors have run out. Makes the pools of other I/O threads close their idle
  // connections, and a paused one of this pool end. Waits until a lease of this pool has ended, or
  // for a moment; at most until `deadline`.
  awaitable<void> until_one_may_be_free(time_source::time_point deadline);

  std::size_t idle_connections() const;  // for tests

 private:
  using ticket = std::pair<std::uint64_t, std::uint64_t>;
  struct idle_connection {
    pooled_connection connection;
    time_source::time_point since;
  };
  struct origin {
    int leased = 0;  // those that count
    std::uint64_t moves = 0;
    std::vector<idle_connection> idle;  // least idle last
    std::map<ticket, condition*> waiting;
    std::list<condition*> paused;  // those that may end; longest first
  };
  class place_in_line;
  void drop_overdue();
  static void wake_first(origin& at);
  // The number of paused ones that should end.
  std::size_t wanted(const origin& at) const;
  void wake_wanted(origin& at) const;
  awaitable<result<void>> wait_for_place(place_in_line& mine, const origin& at);
  void enter_list(const asio::any_io_executor& executor);

  time_source& time_;
  int most_;
  steady_clock::duration idle_limit_;
  steady_clock::duration patience_;
  bool lacks_descriptor_ = false;          // until the next lease ends
  std::map<std::string, origin> origins_;  // references stay valid
  std::uint64_t next_ticket_ = 0;
  std::optional<condition> one_ended_;    // set once a request waits for it
  std::optional<std::uint64_t> in_list_;  // its place in the list of all pools
};

}  // namespace millrace
