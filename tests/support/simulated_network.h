#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "engine/base/random.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "io/http/transport.h"

namespace millrace::testing {

// Time that stands still while anything can run, and then jumps to the next waiter. One io_context,
// which only this runs.
class simulated_time final : public time_source {
 public:
  explicit simulated_time(asio::io_context& context) : context_(context) {}
  time_point now() const override { return now_; }
  std::int64_t unix_seconds() const override { return 1'700'000'000; }
  awaitable<void> sleep_until(time_point when) override;

  // Runs `work` to its end, for at most `limit` of simulated time; fails the test if it takes
  // longer.
  template <class T>
  T run(awaitable<T> work, steady_clock::duration limit = std::chrono::hours(24)) {
    auto done = spawn_on(context_.get_executor(), std::move(work));
    run_until([&] { return done.wait_for(std::chrono::seconds(0)) == std::future_status::ready; },
              limit);
    return done.get();
  }

 private:
  void run_until(const std::function<bool()>& over, steady_clock::duration limit);

  asio::io_context& context_;
  time_point now_{std::chrono::hours(1)};
  std::multimap<time_point, condition*> sleepers_;
};

// A piece that a server sends, and its time.
struct sent {
  std::chrono::microseconds after{0};  // after the previous piece
  std::string bytes;
  enum class end { none, fin, reset } ends = end::none;
};

// A network in memory: hosts have addresses, addresses have servers, and a server answers each
// request (its text) with pieces. Anything can be late, cut or refused.
class simulated_network final : public network {
 public:
  using server = std::function<std::vector<sent>(const std::string& request)>;

  simulated_network(time_source& time) : time_(time) {}
  void add(const std::string& host, std::vector<std::string> ips) { names_[host] = std::move(ips); }
  void serve(const std::string& ip, server s) { servers_[ip] = std::move(s); }
  void refuse(const std::string& ip) { servers_[ip] = nullptr; }
  void never_answer(const std::string& ip) { silent_.push_back(ip); }
  void never_resolve(const std::string& host) { silent_.push_back(host); }
  // From now on the host cannot be found: permanently, or for the moment.
  void forget(const std::string& host, bool for_good) {
    names_.erase(host);
    gone_for_good_ = for_good;
  }
  // From now on everything that may wait does wait, for a time that is drawn from the seed, so that
  // concurrent requests interleave in ever different orders.
  void unsettle(std::uint64_t seed);

  awaitable<result<std::vector<address>>> resolve(std::string host, std::string port) override;
  awaitable<result<std::unique_ptr<byte_stream>>> connect(
      address where, time_source::time_point deadline) override;

  // Called before each look-up, connection, read and write; returns whether it fails.
  static inline std::function<bool()> fault;

  // Servers of connections made from now on read no more than about that much of a request.
  std::size_t takes = ~std::size_t{0};
  // Called by connections made from now on with what has come of a request, after its head: the
  // answer to it as soon as that is not empty.
  server early;

  int connections = 0;                                   // made so far
  std::shared_ptr<int> open = std::make_shared<int>(0);  // of them
  int look_ups = 0;

 private:
  time_source& time_;
  std::map<std::string, std::vector<std::string>> names_;
  std::map<std::string, server> servers_;
  std::vector<std::string> silent_;
  bool gone_for_good_ = false;
  std::shared_ptr<random_stream> order_;  // null: nothing waits unnecessarily
};

}  // namespace millrace::testing
