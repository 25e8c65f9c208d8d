#include "io/disks/read_gate.h"

#include <fmt/format.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "engine/host/log.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

// The lock of a process that ends is released a moment after the close of its file is announced.
constexpr int looks_after_a_close = 20;
constexpr auto between_looks = 1ms;
// Without inotify (its instances are limited for each user), and in case a wake-up is lost.
constexpr auto unannounced_look = 5ms;
constexpr auto usual_look = 250ms;
// Multiples of options.patience: how long a gate waits for a turn in all, and how long it then does
// without.
constexpr int most_patience = 10;
constexpr int apart_for = 100;

awaitable<void> expired(steady_timer* timer) {
  co_await timer->async_wait(no_throw);
}
awaitable<void> expired_or_woken(steady_timer* timer, condition* woken) {
  co_await first_of(expired(timer), woken->wait());
}
awaitable<void> readable(asio::posix::stream_descriptor* of) {
  co_await of->async_wait(asio::posix::stream_descriptor::wait_read, no_throw);
}

}  // namespace

void gate_permit::release() {
  const auto gate = gate_.lock();
  gate_.reset();
  if (gate) {
    gate->left(meeting_, place_);
  } else if (meeting_ && place_ >= 0) {
    meeting_->leave(place_);
  }
  meeting_.reset();
  place_ = -1;
}

void gate_permit::keep_alive() {
  const auto gate = gate_.lock();
  if (!gate || !meeting_) return;
  const auto still = steady_clock::now() - gate->last_motion_;
  if (still < gate->options_.patience / 4) return;
  meeting_->announce();
  gate->last_motion_ = steady_clock::now();
}

read_gate::read_gate(asio::any_io_executor executor, gate_options options)
    : executor_(std::move(executor)), options_(std::move(options)), events_(executor_) {
  const int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (fd >= 0) events_.assign(fd);
}

void read_gate::open(int generation) {
  if (events_.is_open() && watch_ >= 0) inotify_rm_watch(events_.native_handle(), watch_);
  watch_ = -1;
  const std::string suffix = generation == 0 ? "" : fmt::format("-{}", generation);
  auto opened = gate_file::open(options_.folder, options_.identity + suffix, options_.permits);
  if (!opened) {
    if (!told_) {
      log_notice(fmt::format("{}; reads of {} take turns within this process only",
                             opened.error().message(), options_.identity));
    }
    told_ = true;
    meeting_.reset();
    return;
  }
  meeting_ = std::move(*opened);
  generation_ = generation;
  last_motion_ = steady_clock::now();
  if (events_.is_open()) {
    watch_ = inotify_add_watch(events_.native_handle(), meeting_->path().c_str(),
                               IN_MODIFY | IN_CLOSE_WRITE);
  }
}

// Makes this gate queue where the others do.
void read_gate::meet() {
  if (steady_clock::now() < apart_until_) return;
  if (!meeting_ || meeting_->orphaned()) {
    open(generation_);
  } else if (generation_ > 0 && !meeting_->queued()) {
    auto first = gate_file::open(options_.folder, options_.identity, options_.permits);
    if (first && (*first)->idle()) open(0);
  }
}

void read_gate::serve_waiters() {
  while (!waiters_.empty()) {
    if (!meeting_ || !meeting_->queued()) meet();
    gate_permit permit;
    if (meeting_) {
      meeting_->queue();
      const auto place = meeting_->try_enter();
      if (!place) return;
      permit.place_ = *place;
    } else {
      if (inside_ >= options_.permits) return;
    }
    ++inside_;
    permit.gate_ = weak_from_this();
    permit.meeting_ = meeting_;
    give(std::move(permit));
  }
}

// Goes to the reader that is nearest to starving, but passes over no reader forever.
void read_gate::give(gate_permit permit) {
  const auto longest = static_cast<int>(2 * waiters_.size());
  auto next = waiters_.begin();
  if ((*next)->passed_over < longest) {
    next = std::ranges::min_element(waiters_, {}, [](const auto& w) { return w->ready(); });
  }
  for (auto it = waiters_.begin(); it != next; ++it) ++(*it)->passed_over;
  const auto chosen = *next;
  waiters_.erase(next);
  permit.contended_ = chosen->waited || !waiters_.empty();
  chosen->given = std::move(permit);
  chosen->woken.notify_all();
  last_motion_ = last_turn_ = steady_clock::now();
}

void read_gate::left(const std::shared_ptr<gate_file>& meeting, int place) {
  if (meeting) meeting->leave(place);
  --inside_;
  last_motion_ = last_turn_ = steady_clock::now();
  try {
    serve_waiters();
  } catch (const std::bad_alloc&) {
    // The caller may be a destructor: the first waiter looks for itself.
    if (!waiters_.empty()) waiters_.front()->woken.notify_all();
  }
}

awaitable<gate_permit> read_gate::enter(std::function<std::size_t()> ready) {
  // However this coroutine ends, it leaves the queue, and another waiter watches the gate.
  struct guard {
    read_gate& gate;
    std::shared_ptr<waiter> mine;
    bool watching = false;
    ~guard() {
      std::erase(gate.waiters_, mine);
      if (watching) gate.watched_ = false;
      if (gate.waiters_.empty()) {
        if (gate.meeting_) gate.meeting_->leave_queue();
      } else if (!gate.watched_) {
        gate.waiters_.front()->woken.notify_all();
      }
    }
  };
  const auto self = shared_from_this();
  guard g{*this, std::make_shared<waiter>(executor_)};
  g.mine->ready = std::move(ready);
  // Without waiters, nothing was watched.
  if (waiters_.empty()) last_motion_ = last_turn_ = steady_clock::now();
  waiters_.push_back(g.mine);
  serve_waiters();
  g.mine->waited = !g.mine->given;
  while (!g.mine->given) {
    if (watched_) {
      co_await g.mine->woken.wait();
    } else {
      watched_ = g.watching = true;
      co_await watch(*g.mine);
      watched_ = g.watching = false;
    }
    if (!g.mine->given) serve_waiters();
  }
  co_return std::move(*g.mine->given);
}

// Waits until something may have changed.
awaitable<void> read_gate::watch(waiter& mine) {
  const auto interval = soon_ > 0                           ? between_looks
                        : watch_ < 0 && meeting_ != nullptr ? unannounced_look
                                                            : usual_look;
  if (soon_ > 0) --soon_;
  steady_timer timer(executor_, std::min<steady_clock::duration>(interval, options_.patience));
  if (watch_ >= 0) {
    co_await first_of(readable(&events_), expired_or_woken(&timer, &mine.woken));
    drain_events();
  } else {
    co_await expired_or_woken(&timer, &mine.woken);
  }
  // Its own extent is not a reason to lose patience.
  if (!meeting_ || inside_ > 0) co_return;
  const auto now = steady_clock::now();
  if (now - last_turn_ >= most_patience * options_.patience) {
    go_apart();
  } else if (now - last_motion_ >= options_.patience) {
    lose_patience();
  }
}

void read_gate::drain_events() {
  alignas(inotify_event) std::array<char, 4096> events;
  for (;;) {
    const ssize_t n = ::read(events_.native_handle(), events.data(), events.size());
    if (n <= 0) return;
    last_motion_ = steady_clock::now();
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events.data() + at);
      if ((event->mask & IN_CLOSE_WRITE) != 0) soon_ = looks_after_a_close;
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
  }
}

void read_gate::lose_patience() {
  log_notice(fmt::format(
      "the read gate of {} has not moved for {} s (is process {} stopped?); reading without it",
      options_.identity, std::chrono::duration<double>(options_.patience).count(),
      meeting_->last_entered()));
  meeting_->leave_queue();
  open(generation_ + 1);
}

// The gate shows activity all the time, but never grants a turn: its cause is not a reader of this
// kind.
void read_gate::go_apart() {
  const std::chrono::duration<double> patience = options_.patience;
  log_notice(
      fmt::format("the read gate of {} gave no turn for {} s (process {} was the last in; see {}); "
                  "reads take turns within this process only for {} s",
                  options_.identity, most_patience * patience.count(), meeting_->last_entered(),
                  meeting_->path(), apart_for * patience.count()));
  meeting_->leave_queue();
  meeting_.reset();
  generation_ = 0;
  apart_until_ = steady_clock::now() + apart_for * options_.patience;
}

}  // namespace millrace
