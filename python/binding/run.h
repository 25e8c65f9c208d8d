#pragma once

#include <millrace/millrace.h>
#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "python/binding/interruptible_calls.h"

namespace millrace::python {

// What makes a run: called on the run's own thread, where it may wait (for a list of shards, for an
// index).
template <class T>
using plan_maker = std::function<plan<T>(engine&)>;

// Gives an item bytes of its own, in place of the engine's, and returns how many; nullopt: it is
// too large for that, and is as it was.
template <class T>
using item_keeper = std::optional<std::size_t> (*)(T&);

// The way in which items are taken from the engine.
template <class T>
struct taking {
  // For plans that end in prefetch(): a call takes those that are ready, this many at most, and
  // asks for the next ones, so that they are here when they are needed. What is taken holds the
  // engine's memory; nothing waits for the next ones before that has been given. 0: not so.
  std::size_t ahead = 0;
  // For other plans: a call takes as many items as come within a few milliseconds. While it waits
  // for the next one it has those before it, which must not hold the memory for which that one may
  // wait. Null: a call takes one.
  item_keeper<T> keep = nullptr;
};

// A run of a plan as Python sees it: begun by the first call that needs it, in the process that
// makes that call; interrupted by Ctrl-C, after which it continues where it was. Every function but
// the constructor may wait, without the GIL, and throws as interruptible_calls::call() does. Any
// thread may call stats() and counts(); the others throw `failure` (usage) while another thread is
// in one.
template <class T>
class run {
  static_assert(millrace::detail::tells_origins<T>(),
                "Items of this type do not say which samples they were made of, so a position "
                "before one cannot be saved: give it a member `where`, `items` or `origins` "
                "(docs/stages.md)");

 public:
  // Begins nothing yet.
  explicit run(engine_options options, plan_maker<T> maker, taking<T> how = {})
      : held_(std::make_shared<inside>()) {
    held_->options = std::move(options);
    held_->maker = std::move(maker);
    held_->how = how;
  }
  ~run() {
    if (calls_.is_of_parent()) held_->itself = held_;  // left to the parent
  }
  run(const run&) = delete;
  run& operator=(const run&) = delete;

  // The next item; nullopt: the epoch ends.
  std::optional<T> next() {
    const alone only(*this);
    calls_.check_process();
    if (is_busy()) calls_.call([] {});  // waits for a call that was given up
    inside& in = *held_;
    if (in.has_given_all() && !in.ended && !in.failed) take();
    if (!in.has_given_all()) {
      in.last.clear();
      millrace::detail::append_origins(in.last, in.taken[in.given]);
      return std::move(in.taken[in.given++]);
    }
    in.last.clear();
    if (in.failed) std::rethrow_exception(std::exchange(in.failed, nullptr));
    if (!in.ended) throw failure(error(errc::stopped, "the wait for an item was interrupted"));
    in.ended = false;
    return std::nullopt;
  }

  // Any thread, also while another one is in next(), which then throws `failure` (stopped) unless
  // it has an item. The next call continues.
  void interrupt() { held_->stop(); }

  // The position after the last item that next() has returned, as JSON; with `before_last` that
  // before it, for a program that could not use it.
  std::string save(bool before_last = false) {
    const alone only(*this);
    auto text = std::make_shared<std::string>();
    const auto what = [=, held = held_] { *text = held->position(before_last).to_json(); };
    // Of a loader that makes no item, or stores the position before that, it is a short wait for
    // the I/O thread.
    const inside& in = *held_;
    if (in.data && !is_busy() && (!in.asked || in.how.ahead > 0)) {
      calls_.call_here(what);
    } else {
      calls_.call(what);
    }
    return *text;
  }

  // Before the first next(): continues from a position.
  void restore(state position) {
    const alone only(*this);
    calls_.call([held = held_, at = std::move(position)] { held->restore(at); });
  }

  // Starts the run, if nothing has.
  void start() {
    const alone only(*this);
    calls_.call([held = held_] { held->start(); });
  }

  // Also while a call waits: it does not wait for that.
  run_stats stats() {
    return figures([](inside& in) { return in.stats(); });
  }
  // As stats().
  ledger counts() {
    return figures([](inside& in) { return in.counts(); });
  }

  // Ends the run and its threads. Nothing, if it was not begun or is another process's. The call of
  // another thread is waited for, then stopped; one that was given up ends the run when it ends.
  void close() {
    if (calls_.is_of_parent()) return;
    if (!calls_.wait_for_callers(std::chrono::milliseconds(250))) {
      held_->stop();
      if (!calls_.wait_for_callers(std::chrono::seconds(1))) return;
    }
    if (is_busy()) {
      held_->stop();
      return;
    }
    const alone only(*this);
    calls_.call([held = held_] { held->close(); });
  }
  // Whether a call is under way on the run's own thread: another thread's, or one that was given
  // up.
  bool is_busy() const { return calls_.is_busy(); }
  // Whether a fork lies between the first call and now.
  bool is_of_parent() const { return calls_.is_of_parent(); }

 private:
  // Waits on the calling thread: two changes of threads fewer for each item than on the run's.
  void take() {
    const auto stop = [held = held_] { held->stop(); };
    if (!held_->can_give()) calls_.call([held = held_] { held->begin(); }, stop);
    calls_.wait_here([in = held_.get()](auto most) { return in->has_taken_within(most); }, stop);
  }

  template <class Ask>
  auto figures(Ask ask) {
    calls_.check_process();
    const nanobind::gil_scoped_release without;
    const std::shared_lock lock(held_->replacing);
    return ask(*held_);
  }

  // One thread at a time takes items.
  struct alone {
    run& of;
    explicit alone(run& r) : of(r) {
      of.calls_.check_process();
      auto nobody = std::thread::id();
      const auto me = std::this_thread::get_id();
      if (of.user_.compare_exchange_strong(nobody, me)) return;
      if (nobody == me) {
        throw failure(error(errc::usage, "a handler of a signal uses a loader that waits")
                          .hint("have it set a flag, at which the loop saves or ends"));
      }
      throw failure(error(errc::usage, "two threads use this loader at once")
                        .hint("use it from one, or make one for each"));
    }
    ~alone() { of.user_ = std::thread::id(); }
    alone(const alone&) = delete;
    alone& operator=(const alone&) = delete;
  };

  struct inside {
    std::shared_ptr<inside> itself;  // set: it is never destroyed
    // Constant.
    engine_options options;
    plan_maker<T> maker;
    taking<T> how;
    // Used by the run's thread; by the others while it is idle.
    std::unique_ptr<engine> eng;
    std::optional<plan<T>> what;
    std::optional<loader<T>> data;  // made and ended under `replacing`
    std::shared_mutex replacing;
    std::vector<T> taken;  // of which `given` have been given
    std::size_t given = 0;
    std::vector<origin> last;   // of the item given last, in this epoch
    bool ended = false;         // an end was taken after those
    std::exception_ptr failed;  // an error was, instead
    bool stopped = false;       // by Ctrl-C: the loader gives no more
    bool asked = false;         // the loader makes an item for which the last call did not wait
    std::optional<state> from;  // where it was, while another loader is made
    // Of loaders before the present one; replaced with it.
    ledger counts_before;
    run_stats stats_before;
    std::mutex guard;
    std::stop_source stopper;  // of the present loader; guarded

    void start() {
      if (data) return;
      if (!eng) eng = std::make_unique<engine>(options);
      if (!what) what = maker(*eng);
      std::stop_source fresh;
      loader<T> made = eng->run(*what, fresh.get_token());
      {
        const std::scoped_lock lock(replacing);
        data.emplace(std::move(made));
      }
      const std::scoped_lock lock(guard);
      stopper = fresh;
    }
    void end_loader(bool keeps_figures) {
      ledger counted;
      run_stats figured;
      if (data && keeps_figures) {
        counted = counts();
        figured = stats();
      }
      const std::scoped_lock lock(replacing);
      if (data && keeps_figures) {
        counts_before = std::move(counted);
        stats_before = std::move(figured);
      }
      data.reset();
    }
    void restore(const state& position) {
      start();
      data->restore(position);
    }
    // Any thread.
    std::stop_source present_stopper() {
      const std::scoped_lock lock(guard);
      return stopper;
    }
    void stop() { present_stopper().request_stop(); }

    // Whether there is a loader that gives items. A signal may have come when the last call had
    // just ended.
    bool can_give() { return data && !stopped && !from && !present_stopper().stop_requested(); }
    void begin() {
      start();
      if (!can_give()) begin_again();
    }
    // Waits for at most so long, and takes the items that are there, or the end or the error that
    // comes instead.
    bool has_taken_within(std::chrono::milliseconds most) {
      try {
        return how.ahead > 0 ? takes_ready_within(most) : takes_within(most);
      } catch (const failure& f) {
        asked = false;
        stopped = f.kind() == errc::stopped && present_stopper().stop_requested();
        if (!stopped) failed = std::current_exception();
      }
      return true;
    }
    bool takes_ready_within(std::chrono::milliseconds most) {
      asked = !data->wait_for(most, how.ahead);
      if (asked) return false;
      taken = data->next_ready(how.ahead);
      given = 0;
      ended = taken.empty();
      asked = !ended;
      if (asked) data->wait_for(std::chrono::milliseconds(0), how.ahead);
      return true;
    }
    // Returns false while an item is under way; the caller calls again, unless a signal's handler
    // raises. A state saved then would have to wait for that item.
    bool takes_within(std::chrono::milliseconds most) {
      constexpr std::size_t most_items = 64;
      constexpr std::size_t most_bytes = 1UL << 20;
      const auto due = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
      if (has_given_all()) {
        taken.clear();
        given = 0;
        taken.reserve(most_items);
      }
      const bool may_take_several = taken.empty();
      for (std::size_t bytes = 0;;) {
        asked = !data->wait_for(most);
        if (asked) return false;
        std::optional<T> item = data->next();
        ended = !item;
        if (ended) return true;
        const auto kept = how.keep ? how.keep(*item) : std::nullopt;
        taken.push_back(std::move(*item));
        bytes += kept.value_or(most_bytes);
        const bool is_due = std::chrono::steady_clock::now() > due;
        if (!may_take_several || is_due || taken.size() == most_items || bytes >= most_bytes) {
          return true;
        }
      }
    }
    bool has_given_all() const { return given == taken.size(); }

    // The counts of all loaders. Other threads than the run's hold `replacing`.
    ledger counts() {
      ledger all = counts_before;
      if (data) all.add(data->counts());
      return all;
    }
    run_stats stats() {
      run_stats all = stats_before;
      if (data) all.add(data->stats());
      return all;
    }

    // Continues by another loader where a stopped one was. A signal may stop that one as well.
    void begin_again() {
      if (!from) from = data->save();
      end_loader(true);
      restore(*from);
      from.reset();
      stopped = asked = false;
    }

    // Before what is taken and not given.
    state position(bool before_last) {
      start();
      // An item that takes long to come is stopped rather than waited for.
      if (asked && how.ahead == 0 && !from && !data->wait_for(std::chrono::milliseconds(100)))
        stop();
      state now = from ? *from : data->save();
      if (before_last) now.hold(pending_record, last);
      std::vector<origin> of;
      for (std::size_t i = given; i < taken.size(); ++i) {
        millrace::detail::append_origins(of, taken[i]);
      }
      now.hold(pending_record, of);
      if (ended) now.append(end_owed_record, state::record{1});
      return now;
    }

    void close() {
      taken.clear();
      given = 0;
      end_loader(false);
      what.reset();
      eng.reset();
    }
  };

  std::shared_ptr<inside> held_;
  std::atomic<std::thread::id> user_ = std::thread::id();  // that is in a call; none
  interruptible_calls calls_;                              // ends before what its calls share
};

}  // namespace millrace::python
