#pragma once

#include <deque>
#include <memory>

#include "pipeline/on_error.h"
#include "pipeline/plan.h"

namespace millrace {

namespace detail {

// Runs the stages in front ahead of those behind. Beside each item stands the state as it was when
// the item was made, so that saving tells where the consumer is, not where the producer is.
template <class T>
class prefetch_stream final : public stream<T> {
  using outcome = typename stream<T>::outcome;
  struct entry {
    outcome item;
    std::shared_ptr<const state> behind;  // the state with the item delivered
  };
  struct shared {
    shared(const asio::any_io_executor& executor, std::unique_ptr<stream<T>> s, std::size_t c)
        : items(std::move(s)), capacity(c), has_item(executor), has_room(executor) {}
    std::unique_ptr<stream<T>> items;
    std::size_t capacity;
    std::deque<entry> ready;
    bool ended = false;
    condition has_item;
    condition has_room;

    std::shared_ptr<const state> snapshot() const {
      auto now = std::make_shared<state>();
      items->save(*now);
      return now;
    }
  };

 public:
  prefetch_stream(run_context& run, std::unique_ptr<stream<T>> items, std::size_t capacity)
      : run_(run),
        shared_(std::make_shared<shared>(run.io.executor(), std::move(items), capacity)) {}

  awaitable<outcome> next() override {
    shared& s = *shared_;
    if (!started_) {
      started_ = true;
      delivered_ = s.snapshot();
      pump_ = run_.tasks.spawn_stoppable(pump(shared_));
    }
    while (s.ready.empty() && !s.ended) co_await s.has_item.wait();
    if (s.ready.empty() && broken_) co_return *broken_;  // again, to whoever asks again
    if (s.ready.empty()) co_return std::optional<T>();
    entry front = std::move(s.ready.front());
    s.ready.pop_front();
    s.has_room.notify_one();
    if (front.behind) delivered_ = std::move(front.behind);
    if (!front.item && !front.item.error().is_skippable()) broken_ = front.item.error();
    co_return std::move(front.item);
  }

  void save(state& to) const override {
    if (!delivered_) return shared_->items->save(to);
    to.append(*delivered_);
  }
  void restore(const state& from) override { shared_->items->restore(from); }

 private:
  static awaitable<void> pump(std::shared_ptr<shared> s) {
    bool last_was_end = false;
    while (!s->ended) {
      while (s->ready.size() >= s->capacity) co_await s->has_room.wait();
      auto item = co_await s->items->next();
      const bool is_end = item && !*item;
      // Two ends in a row: there is no further epoch.
      s->ended = (!item && !item.error().is_skippable()) || (is_end && last_was_end);
      last_was_end = is_end;
      auto behind = item ? s->snapshot() : nullptr;
      s->ready.push_back({std::move(item), std::move(behind)});
      s->has_item.notify_one();
    }
  }

  run_context& run_;
  std::shared_ptr<shared> shared_;
  std::shared_ptr<const state> delivered_;
  std::optional<error> broken_;
  scope::task pump_;
  bool started_ = false;
};

}  // namespace detail

// Keeps up to `items` items (batches, as a rule) ready beyond the one in use. A stage for items of
// any kind.
struct prefetch {
  int items;
  explicit prefetch(int n) : items(n) {
    if (n < 1) throw failure(error(errc::usage, "a prefetch of no items"));
  }

  template <class T>
  stage<T, T> for_items() const {
    return {"prefetch",
            [n = items](run_context& run,
                        std::unique_ptr<stream<T>> from) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::prefetch_stream<T>>(run, std::move(from),
                                                                  static_cast<std::size_t>(n));
            },
            [n = items](run_context& run) { run.batches_queued += n; }};
  }
};

}  // namespace millrace
