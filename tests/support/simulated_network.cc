#include "tests/support/simulated_network.h"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <deque>
#include <stdexcept>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "io/http/transport.h"
#include "tests/support/unhooked.h"

namespace millrace::testing {

using time_point = time_source::time_point;

awaitable<void> simulated_time::sleep_until(time_point when) {
  condition awake(co_await this_executor);
  // held over co_await: only this coroutine erases it
  const auto place = sleepers_.emplace(when, &awake);
  bool woken = false;
  while (now_ < when && !woken) {
    co_await awake.wait();
    woken = now_ < when;  // cancelled: the next await throws
  }
  sleepers_.erase(place);
  co_await asio::post(co_await this_executor, no_throw);
}

void simulated_time::run_until(const std::function<bool()>& over, steady_clock::duration limit) {
  const time_point end = now_ + limit;
  while (!over()) {
    context_.restart();
    if (context_.poll() > 0) continue;
    if (sleepers_.empty()) throw std::runtime_error("everything waits, and nobody wakes");
    now_ = std::max(now_, sleepers_.begin()->first);
    if (now_ > end) throw std::runtime_error("not within the simulated time");
    for (const auto& [when, sleeper] : sleepers_) {
      if (when <= now_) sleeper->notify_all();
    }
  }
}

namespace {

using microseconds = std::chrono::microseconds;

microseconds drawn(random_stream& order, microseconds most) {
  return microseconds(static_cast<long long>(order.uniform() * static_cast<double>(most.count())));
}

class simulated_stream final : public byte_stream {
 public:
  simulated_stream(time_source& time, simulated_network::server answers,
                   std::shared_ptr<random_stream> order, std::shared_ptr<int> open,
                   std::size_t takes, simulated_network::server early)
      : time_(time),
        takes_(takes),
        answers_(std::move(answers)),
        early_(std::move(early)),
        order_(std::move(order)),
        open_(std::move(open)) {
    ++*open_;
  }
  ~simulated_stream() override { --*open_; }
  simulated_stream(const simulated_stream&) = delete;
  simulated_stream& operator=(const simulated_stream&) = delete;

  moved try_write(std::span<const std::byte> from) override {
    const unhooked here;
    if (simulated_network::fault && simulated_network::fault()) {
      return {0, asio::error::broken_pipe};
    }
    if (order_ && order_->uniform() < 0.2) return {0, asio::error::would_block};
    if (request_.size() >= takes_) return {0, asio::error::would_block};
    request_.append(reinterpret_cast<const char*>(from.data()), from.size());
    if (is_whole(request_)) {
      answer(answers_(std::exchange(request_, {})));
    } else if (early_ && coming_.empty() && request_.find("\r\n\r\n") != std::string::npos) {
      answer(early_(request_));
    }
    return {from.size(), {}};
  }

  moved try_read(std::span<std::byte> into) override {
    const unhooked here;
    if (simulated_network::fault && simulated_network::fault()) {
      return {0, asio::error::connection_reset};
    }
    if (coming_.empty() || coming_.front().at > time_.now()) return {0, asio::error::would_block};
    sent& next = coming_.front().what;
    if (!next.bytes.empty()) {
      const std::size_t n = std::min(into.size(), next.bytes.size());
      std::memcpy(into.data(), next.bytes.data(), n);
      next.bytes.erase(0, n);
      if (next.bytes.empty() && next.ends == sent::end::none) coming_.pop_front();
      return {n, {}};
    }
    if (next.ends == sent::end::fin) return {0, asio::error::eof};
    if (next.ends == sent::end::reset) return {0, asio::error::connection_reset};
    coming_.pop_front();
    return try_read(into);
  }

  awaitable<error_code> wait(direction which, time_point deadline) override {
    if (order_) co_await time_.sleep(drawn(*order_, microseconds(2'000)));
    if (which == direction::write && request_.size() >= takes_) {
      co_await time_.sleep_until(deadline);
      co_return error_code(asio::error::timed_out);
    }
    if (which == direction::write) co_return error_code();
    const time_point next = coming_.empty() ? time_point::max() : coming_.front().at;
    co_await time_.sleep_until(std::min(next, deadline));
    co_return next <= deadline ? error_code() : error_code(asio::error::timed_out);
  }

 private:
  void answer(std::vector<sent> pieces) {
    time_point at = time_.now();
    for (sent& s : pieces) {
      at += s.after;
      coming_.push_back({at, std::move(s)});
    }
  }

  struct arrival {
    time_point at;
    sent what;
  };
  // Whether the head has arrived, and the body that it announces.
  static bool is_whole(const std::string& request) {
    constexpr std::string_view end_of_head = "\r\n\r\n";
    constexpr std::string_view length = "\r\nContent-Length: ";
    const auto head = request.find(end_of_head);
    if (head == std::string::npos) return false;
    const auto field = request.find(length);
    if (field > head) return true;
    return request.size() - head - end_of_head.size() >=
           std::stoull(request.substr(field + length.size()));
  }

  time_source& time_;
  std::size_t takes_;
  simulated_network::server answers_;
  simulated_network::server early_;
  std::shared_ptr<random_stream> order_;
  std::shared_ptr<int> open_;
  std::string request_;
  std::deque<arrival> coming_;
};

}  // namespace

awaitable<result<std::vector<address>>> simulated_network::resolve(std::string host,
                                                                   std::string port) {
  ++look_ups;
  if (fault && fault())
    co_return error(errc::connect_failed, "no answer about " + host).retryable();
  if (std::ranges::find(silent_, host) != silent_.end()) {
    co_await time_.sleep(std::chrono::hours(1000));
  }
  if (order_) co_await time_.sleep(drawn(*order_, microseconds(300'000)));
  const auto found = names_.find(host);
  if (found == names_.end()) {
    co_return error(errc::connect_failed, "no such host: " + host).retryable(!gone_for_good_);
  }
  std::vector<address> out;
  for (const auto& ip : found->second) out.push_back({.ip = ip, .port = port, .path = {}});
  co_return out;
}

awaitable<result<std::unique_ptr<byte_stream>>> simulated_network::connect(address where,
                                                                           time_point deadline) {
  co_await time_.sleep(order_ ? drawn(*order_, microseconds(100'000)) : microseconds(1'000));
  if (std::ranges::find(silent_, where.ip) != silent_.end()) {
    co_await time_.sleep_until(deadline);
    co_return error(errc::timed_out, "no connection to " + where.ip).retryable();
  }
  const auto found = servers_.find(where.ip);
  if (found == servers_.end() || !found->second) {
    co_return error(errc::connect_failed, "refused by " + where.ip).retryable();
  }
  if (fault && fault()) {
    co_return error(errc::connect_failed, "no way to " + where.ip).retryable();
  }
  ++connections;
  co_return std::make_unique<simulated_stream>(time_, found->second, order_, open, takes, early);
}

void simulated_network::unsettle(std::uint64_t seed) {
  order_ = std::make_shared<random_stream>(seed, purpose::fake_data);
}

}  // namespace millrace::testing
