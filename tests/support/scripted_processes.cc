#include "tests/support/scripted_processes.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <utility>

#include "engine/coroutines/async.h"
#include "engine/host/seams.h"
#include "tests/support/unhooked.h"

namespace millrace::testing {
namespace {

using time_point = steady_clock::time_point;

time_point later(time_point from, script::duration by) {
  const bool is_never = by == script::never || from == time_point::max();
  return is_never ? time_point::max() : from + by;
}

int refused() {
  const unhooked here;
  return scripted_processes::fault ? scripted_processes::fault() : 0;
}

class scripted_process final : public child_process {
 public:
  scripted_process(script what, const asio::any_io_executor& executor, int& running)
      : out_(executor),
        err_(executor),
        end_(executor),
        running_(running),
        is_deaf_(what.is_deaf),
        status_(what.status) {
    time_point at = steady_clock::now();
    for (script::writing& w : what.writes) {
      at = later(at, w.after);
      (w.to == output::out ? out_ : err_).coming.push_back({at, std::move(w.bytes)});
    }
    out_.closed = err_.closed = later(at, what.closes_after);
    ended_ = later(at, what.ends_after);
    ++running_;
  }
  ~scripted_process() override {
    const unhooked here;
    kill();
  }
  scripted_process(const scripted_process&) = delete;
  scripted_process& operator=(const scripted_process&) = delete;

  awaitable<ssize_t> read_some(output from, std::span<std::byte> into) override {
    if (const int why = refused(); why != 0) co_return -why;
    // held over co_await: a member, which outlives its readers
    pipe& p = from == output::out ? out_ : err_;
    for (;;) {
      const time_point now = steady_clock::now();
      if (p.closed <= now && (p.coming.empty() || p.coming.front().at > now)) co_return 0;
      if (!p.coming.empty() && p.coming.front().at <= now) co_return take(p, into);
      const time_point next = p.coming.empty() ? time_point::max() : p.coming.front().at;
      p.timer.expires_at(std::min(next, p.closed));
      co_await p.timer.async_wait(no_throw);
    }
  }

  awaitable<int> wait_for_end() override {
    if (const int why = refused(); why != 0) co_return -why;
    while (steady_clock::now() < ended_) {
      end_.expires_at(ended_);
      co_await end_.async_wait(no_throw);
    }
    co_return 0;
  }

  void kill() override {
    gone();
    const time_point now = steady_clock::now();
    if (is_deaf_ || ended_ <= now) return;
    ended_ = now + std::chrono::milliseconds(1);
    status_ = SIGKILL;
    for (pipe* p : {&out_, &err_}) {
      p->closed = now;
      p->coming.clear();
      p->timer.cancel();
    }
    end_.cancel();
  }

  std::optional<int> status() override {
    gone();
    return steady_clock::now() >= ended_ ? std::optional(status_) : std::nullopt;
  }

 private:
  struct arrival {
    time_point at;
    std::string bytes;
  };
  struct pipe {
    explicit pipe(const asio::any_io_executor& executor) : timer(executor) {}
    std::deque<arrival> coming;
    time_point closed;
    steady_timer timer;
  };

  static ssize_t take(pipe& p, std::span<std::byte> into) {
    const unhooked here;
    std::string& bytes = p.coming.front().bytes;
    const std::size_t n = std::min(into.size(), bytes.size());
    std::memcpy(into.data(), bytes.data(), n);
    bytes.erase(0, n);
    if (bytes.empty()) p.coming.pop_front();
    return static_cast<ssize_t>(n);
  }
  void gone() {
    if (!std::exchange(is_gone_, true)) --running_;
  }

  pipe out_;
  pipe err_;
  steady_timer end_;
  int& running_;
  bool is_deaf_;
  bool is_gone_ = false;
  int status_;
  time_point ended_;
};

}  // namespace

scripted_processes::scripted_processes(std::function<script(const std::string&)> of)
    : of_(std::move(of)) {
  simulate_processes(this);
}

scripted_processes::~scripted_processes() {
  simulate_processes(nullptr);
}

int scripted_processes::start(const std::string& command, const asio::any_io_executor& executor,
                              std::unique_ptr<child_process>& to) {
  if (const int why = refused(); why != 0) return -why;
  const unhooked here;
  script what = of_(command);
  if (what.start_fails != 0) return -what.start_fails;
  to = std::make_unique<scripted_process>(std::move(what), executor, running);
  ++started;
  return 0;
}

}  // namespace millrace::testing
