#include "engine/coroutines/time_source.h"

#include "engine/coroutines/async.h"

namespace millrace {
namespace {

class real_time_source final : public time_source {
 public:
  time_point now() const override { return steady_clock::now(); }
  std::int64_t unix_seconds() const override { return steady_clock::unix_seconds(); }
  awaitable<void> sleep_until(time_point when) override {
    steady_timer timer(co_await this_executor, when);
    const auto [interrupted] = co_await timer.async_wait(no_throw);
    if (interrupted) throw stopped_coroutine();
  }
};

}  // namespace

time_source& real_time() {
  static real_time_source time;
  return time;
}

}  // namespace millrace
