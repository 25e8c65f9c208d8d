#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/async.h"
#include "engine/condition.h"
#include "engine/result.h"
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
//
// No wait for a connection depends on who waits for one: a reader whose next bytes are behind it
// would wait for ever. A place counts against the limit only while its holder waits for the
// network, which deadlines bound. A holder that waits for anything else (room for what it reads,
// which comes once a reader has taken what is there) calls pause() first, and then either ends its
// connection as soon as is_wanted(), or, where its transfer could not be resumed, does not count
// until it goes on. So whenever somebody is in line, a place comes free after a bounded time. In
// the line nobody is passed by more than `most_passed` of higher priority.
class connection_pool : public std::enable_shared_from_this<connection_pool> {
 public:
  // `time` outlives the pool.
  // `patience`: longer than the deadlines of those who hold places.
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
  // A place, and the connection in it; ends both when destroyed.
  class lease {
   public:
    lease(std::shared_ptr<connection_pool> pool, origin& at) : pool_(std::move(pool)), at_(&at) {}
    lease(lease&& other) noexcept;
    lease& operator=(lease&&) = delete;
    ~lease();

    pooled_connection connection;  // without a stream: to be made
    // Keeps the connection for the next one who wants it, unless some pool lacks descriptors.
    void give_back();

    // Around a wait for anything but the network. `wake` is notified when is_wanted() may have
    // become true, and outlives the pause; null: the place does not count meanwhile.
    void pause(condition* wake);
    void resume();
    // Paused, and somebody waits for this connection to end.
    bool is_wanted() const;
    // Something came: whoever waits in line does so with reason.
    void moved();

   private:
    std::shared_ptr<connection_pool> pool_;
    origin* at_;
    bool counts_ = true;
    std::optional<std::list<condition*>::iterator> paused_;
  };

  // `fresh`: without a connection that was kept. Fails with timed_out where none has come free, and
  // nothing has moved on those that are there, for twice the pool's patience.
  awaitable<result<lease>> acquire(std::string key, int priority, bool fresh);

  // Closes idle connections; false where there were none.
  bool drop_idle();
  // Call when descriptors have run out: makes the pools of other I/O threads close their idle
  // connections, and one of this pool that is paused end, and waits until a lease of this one has
  // ended, or for a moment; at most until `deadline`.
  awaitable<void> until_one_may_be_free(time_source::time_point deadline);

  std::size_t idle_connections() const;  // for tests

 private:
  using ticket = std::pair<std::uint64_t, std::uint64_t>;
  struct idle_connection {
    pooled_connection connection;
    time_source::time_point since;
  };
  struct origin {
    int leased = 0;  // that count
    std::uint64_t moves = 0;
    std::vector<idle_connection> idle;  // the least idle last
    std::map<ticket, condition*> waiting;
    std::list<condition*> paused;  // that may end; the longest first
  };
  class place_in_line;
  void drop_overdue();
  static void wake_first(origin& at);
  // How many of the paused are to end.
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
  std::optional<condition> one_ended_;    // once somebody waits for it
  std::optional<std::uint64_t> in_list_;  // its place in the list of all pools
};

}  // namespace millrace
