#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "pipeline/plan/plan.h"
#include "pipeline/state/records.h"

namespace millrace::detail {

// An item of a stage that works on several at once.
template <class In>
struct window_job {
  std::optional<In> item;       // until the work on it has ended
  std::vector<origin> origins;  // of the item; in states until the job is given out
  std::optional<error> failed;
  bool finished = false;
  bool under_way = false;  // its worker will finish it
  bool ends_epoch = false;
  bool failed_in_front = false;  // the stage before it failed, and gave no item
};

// The items of such a stage, in the order in which they come, and the coroutine that takes them
// from the stage before while others are under way: at most `size` at once, none of an epoch before
// the end of the last one is given out, and none after an error of the stage before until its
// consumer asks again. States have the items as origins. `Job` derives from window_job<In>.
//
// Spine only. Shared with the coroutines that work on its jobs.
template <class In, class Job>
class ordered_window : public std::enable_shared_from_this<ordered_window<In, Job>> {
 public:
  ordered_window(run_context& r, std::string stage, std::unique_ptr<stream<In>> items,
                 std::size_t size)
      : run(r),
        stage_(std::move(stage)),
        items_(std::move(items)),
        size_(size),
        has_finished_(r.io),
        has_room_(r.io) {}
  virtual ~ordered_window() = default;
  ordered_window(const ordered_window&) = delete;
  ordered_window& operator=(const ordered_window&) = delete;

  run_context& run;

  // The coroutine that fills the window. It ends when the returned handle is destroyed.
  [[nodiscard]] scope::task filled() {
    return run.tasks.spawn_stoppable(fill_until_it_fails(this->shared_from_this()));
  }
  // Call when the work on jobs has ended, after `finished` is set.
  void notify_finished() { has_finished_.notify_all(); }

  // The first of the jobs, finished; with `any`, the first finished one, but the end of an epoch
  // after all others. The error, if there is no memory for further jobs.
  awaitable<result<std::shared_ptr<Job>>> take(bool any) {
    leave_failed();
    for (;;) {
      auto ready = jobs_.begin();
      while (any && ready != jobs_.end() && !(*ready)->finished) ++ready;
      const bool is_turn = ready != jobs_.end() && (*ready)->finished &&
                           (ready == jobs_.begin() || !(*ready)->ends_epoch);
      if (is_turn) {
        std::shared_ptr<Job> out = std::move(*ready);
        jobs_.erase(ready);
        give(*out);
        co_return out;
      }
      if (jobs_.empty() && broken_) co_return *broken_;
      co_await has_finished_.wait();
    }
  }

  void leave_failed() {
    failed_.clear();
    if (!std::exchange(error_told_, false)) return;
    items_->leave_failed();
    error_held_ = false;
    has_room_.notify_one();
  }
  void save(state& to) const {
    if (broken_) throw failure(*broken_);
    items_->save(to);
    to.hold(pending_record, failed_);
    for (const auto& j : jobs_) to.hold(pending_record, j->origins);
    if (epoch_held_) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) { items_->restore(from); }

 protected:
  // Begins the work on a job, which is already among the jobs. An error ends the run after the jobs
  // before this one.
  virtual awaitable<result<void>> start(std::shared_ptr<Job> j) = 0;
  virtual void end_epoch() {}

 private:
  void give(const Job& j) {
    if (j.ends_epoch) epoch_held_ = false;
    if (j.failed) {
      failed_ = j.origins;
      error_told_ = j.failed_in_front;
    }
    has_room_.notify_one();
  }

  // An exception is the error of the first item that no worker has, and of all items that are asked
  // for later: the item in hand may be in no state.
  static awaitable<void> fill_until_it_fails(std::shared_ptr<ordered_window> w) {
    auto failed = co_await failure_of(w->fill(), w->stage_);
    if (!failed) co_return;
    w->ended_ = true;
    w->broken_ = failed->skippable(false);
    for (const auto& j : w->jobs_) {
      if (j->finished || j->under_way) continue;
      j->failed = w->broken_;
      j->finished = true;
    }
    w->has_finished_.notify_all();
  }

  awaitable<void> fill() {
    while (!ended_) {
      while (jobs_.size() >= size_ || epoch_held_ || error_held_) co_await has_room_.wait();
      auto next = co_await items_->next();
      const auto j = std::make_shared<Job>();
      if (!next) {
        j->failed = next.error();
        j->failed_in_front = error_held_ = true;
        ended_ = !next.error().is_skippable();
      } else if (!*next) {
        j->ends_epoch = epoch_held_ = true;
        end_epoch();
      } else {
        append_origins(j->origins, **next);
        j->item = std::move(*next);
      }
      j->finished = !j->item;
      jobs_.push_back(j);
      if (j->item) {
        auto begun = co_await start(j);
        if (!begun) {
          j->failed = begun.error().skippable(false);
          j->finished = ended_ = true;
        }
      }
      if (j->finished) has_finished_.notify_all();
    }
  }

  std::string stage_;
  std::unique_ptr<stream<In>> items_;
  std::size_t size_;
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<origin> failed_;   // of the job whose error was given, until the next call
  std::optional<error> broken_;  // why there are no further jobs, and no state
  bool ended_ = false;           // the stage before is asked for nothing more
  bool epoch_held_ = false;      // the end of an epoch waits to be taken
  bool error_held_ = false;      // an error of the stage before waits, or its consumer does
  bool error_told_ = false;      // such an error was given in the last call
  condition has_finished_;
  condition has_room_;
};

// A stage that gives the results of the jobs of such a window.
template <class Out, class Window>
class windowed_stream : public stream<Out> {
 public:
  explicit windowed_stream(std::shared_ptr<Window> window) : window_(std::move(window)) {}
  void leave_failed() override { window_->leave_failed(); }
  void save(state& to) const override { window_->save(to); }
  void restore(const state& from) override { window_->restore(from); }

 protected:
  // The window, being filled.
  Window& window() {
    if (!is_begun_) filling_ = window_->filled();
    is_begun_ = true;
    return *window_;
  }

 private:
  std::shared_ptr<Window> window_;
  scope::task filling_;
  bool is_begun_ = false;
};

}  // namespace millrace::detail
