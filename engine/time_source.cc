#include "engine/time_source.h"

#include <boost/asio/this_coro.hpp>
#include <ctime>

namespace millrace {
namespace {

class real_time_source final : public time_source {
 public:
  time_point now() const override { return steady_clock::now(); }
  std::int64_t unix_seconds() const override { return std::time(nullptr); }
  awaitable<void> sleep_until(time_point when) override {
    asio::steady_timer timer(co_await asio::this_coro::executor, when);
    co_await timer.async_wait(asio::use_awaitable);
  }
};

}  // namespace

time_source& real_time() {
  static real_time_source time;
  return time;
}

}  // namespace millrace
