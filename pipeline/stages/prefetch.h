#pragma once

#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "engine/coroutines/condition.h"
#include "pipeline/pixels/image.h"
#include "pipeline/plan/plan.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// A stage that keeps up to `items` items ready beyond the one in use: batches, as a rule; put it
// last. Fewer, but at least two, if their states would take more than 32 MiB together: each has a
// place for every sample that shuffles hold. For items of any kind. Example: examples/epoch.cc.
struct prefetch {
  // All options of it.
  struct options {
    int items;  // 1 to 2^20
    // The next epoch is not begun here before its first item is asked for. Stages before this one
    // that take items ahead themselves, such as map() with threads, begin it all the same.
    bool within_epoch = false;
  };
  // As given.
  options how;

  // Throws `failure` (usage) for a number out of range.
  explicit prefetch(int items) : prefetch(options{.items = items}) {}
  // Throws as the other one.
  explicit prefetch(const options& o) : how(o) {
    constexpr int most = 1 << 20;
    if (o.items < 1 || o.items > most) {
      throw failure(error(errc::usage, "a prefetch of " + std::to_string(o.items) + " items")
                        .hint("give a number from 1 to " + std::to_string(most)));
    }
  }

  template <class T>
  stage<T, T> for_items() const;
};

namespace detail {

// Runs the earlier stages ahead of the later ones. Each item is stored with the state at the time
// when it was made, so that a saved state is the position of the consumer, not of the producer.
template <class T>
class prefetch_stream final : public stream<T> {
  using outcome = typename stream<T>::outcome;
  struct entry {
    outcome item;
    // The state with the item delivered; for an error, with all that came before it. Null if there
    // was no memory for it.
    std::shared_ptr<const state> position;
    bool has_run_dry = false;
    std::shared_ptr<const state> left = nullptr;     // for an error, after that item
    std::shared_ptr<const ledger> counts = nullptr;  // until it was made
  };
  static std::size_t held_by(const entry& e) {
    return (e.position ? e.position->samples_held() : 0) + (e.left ? e.left->samples_held() : 0);
  }
  // 32 MiB of origins.
  static constexpr std::size_t most_held = (std::size_t{32} << 20) / sizeof(origin);

  struct shared {
    shared(run_context& run, std::unique_ptr<stream<T>> s, const prefetch::options& how)
        : counts(run.counts),
          items(std::move(s)),
          capacity(static_cast<std::size_t>(how.items)),
          most_ends(how.within_epoch ? 1 : 2),
          has_item(run.io),
          has_room(run.io) {}
    const ledger& counts;
    std::shared_ptr<const ledger> counts_before;  // of the last item that was made
    std::unique_ptr<stream<T>> items;
    std::size_t capacity;
    int most_ends;             // in a row, before next() asks for more
    std::vector<entry> made;   // in order, after those in `ready`
    std::vector<entry> ready;  // the next one last
    std::size_t held = 0;      // samples in the states of all that is ready
    bool ended = false;
    bool is_asked = false;  // next() waits for an item
    condition has_item;
    condition has_room;

    // Two items are always made, so that one is ready after the one in use.
    bool is_full() const {
      const std::size_t items_ready = made.size() + ready.size();
      return items_ready >= capacity || (items_ready > 1 && held >= most_held);
    }
    bool is_empty() const { return made.empty() && ready.empty(); }
    // Without memory for them, those of the item before.
    std::shared_ptr<const ledger> counted() noexcept {
      try {
        if (!counts_before || *counts_before != counts) {
          counts_before = std::make_shared<const ledger>(counts);
        }
      } catch (const std::bad_alloc&) {
        return counts_before;
      }
      return counts_before;
    }
    void put(entry e) {
      made.push_back(std::move(e));
      held += held_by(made.back());
      has_item.notify_one();
    }
    const entry* next_entry() const {
      if (!ready.empty()) return &ready.back();
      return made.empty() ? nullptr : &made.front();
    }
    entry take() {
      if (ready.empty()) {
        ready.assign(std::make_move_iterator(made.rbegin()), std::make_move_iterator(made.rend()));
        made.clear();
      }
      entry next = std::move(ready.back());
      ready.pop_back();
      held -= held_by(next);
      has_room.notify_one();
      return next;
    }
    std::shared_ptr<const state> snapshot() const {
      auto now = std::make_shared<state>();
      items->save(*now);
      return now;
    }
    // The error that ends the run is reported even if there is no memory for its position.
    std::shared_ptr<const state> position_of(const outcome& item) const {
      if (item || item.error().is_skippable()) return snapshot();
      try {
        return snapshot();
      } catch (...) {
        return nullptr;
      }
    }
  };

 public:
  prefetch_stream(run_context& run, std::unique_ptr<stream<T>> items, const prefetch::options& how)
      : run_(run), shared_(std::make_shared<shared>(run, std::move(items), how)) {}

  awaitable<outcome> next() override {
    prefetch_stream::leave_failed();
    shared& s = *shared_;
    if (!started_) {
      delivered_ = s.snapshot();
      started_ = true;
      pump_ = run_.tasks.spawn_stoppable(pump(shared_));
    }
    while (s.is_empty() && !s.ended) {
      s.is_asked = true;
      s.has_room.notify_one();
      co_await s.has_item.wait();
    }
    s.is_asked = false;
    if (s.is_empty()) co_return std::optional<T>();
    entry front = s.take();
    // What was skipped since the last position would be skipped, and counted, again.
    if (!front.position && is_failed_) lost_ = front.item.error();
    if (front.position) delivered_ = std::move(front.position);
    is_failed_ = !front.item;
    left_ = std::move(front.left);
    counts_ = std::move(front.counts);
    has_run_dry_ = front.has_run_dry;
    co_return std::move(front.item);
  }

  bool has_run_dry() const override { return has_run_dry_; }
  void leave_failed() override {
    if (auto left = std::exchange(left_, nullptr)) delivered_ = std::move(left);
  }
  void save(state& to) const override {
    if (lost_) throw failure(*lost_);
    if (!delivered_) return shared_->items->save(to);
    to.append(*delivered_);
  }
  std::shared_ptr<const ledger> kept_counts() const override { return counts_; }
  bool has_item_ready() const override {
    const entry* const next = shared_->next_entry();
    return next != nullptr && next->item && *next->item;
  }
  std::shared_ptr<const state> kept_state() const override {
    if (lost_) return nullptr;
    if (is_failed_) return left_;
    return started_ ? delivered_ : shared_->snapshot();
  }
  void restore(const state& from) override { shared_->items->restore(from); }

 private:
  static awaitable<void> pump(std::shared_ptr<shared> s) {
    auto failed = co_await failure_of(fill(s), "prefetch");
    if (!failed) co_return;
    s->put({.item = failed->skippable(false), .position = nullptr, .counts = s->counted()});
    s->ended =
        true;  // with the error there: without memory for it, next() does not take it for an end
  }

  static awaitable<void> fill(std::shared_ptr<shared> s) {
    int ends = 0;  // in a row
    while (!s->ended) {
      // Two ends are an epoch without items, or the end of the data, after which there are ends
      // without end: the next one is made when it is asked for. So is what comes after one end, if
      // nothing of the next epoch is to be read and counted before.
      while (s->is_full() || (ends >= s->most_ends && !(s->is_asked && s->is_empty()))) {
        co_await s->has_room.wait();
      }
      s->is_asked = false;
      auto item = co_await s->items->next();
      const bool is_last = !item && !item.error().is_skippable();
      ends = item && !*item ? ends + 1 : 0;
      auto position = s->position_of(item);
      auto counts = s->counted();  // an error is counted if the program continues after it
      const bool is_dry = item && !*item && s->items->has_run_dry();
      std::shared_ptr<const state> left;
      if (!item && !is_last) {
        s->items->leave_failed();
        left = s->snapshot();
      }
      s->put({std::move(item), std::move(position), is_dry, std::move(left), std::move(counts)});
      s->ended = is_last;
    }
  }

  run_context& run_;
  std::shared_ptr<shared> shared_;
  std::shared_ptr<const state> delivered_;
  std::shared_ptr<const state> left_;  // if an item failed in the last call, the state after it
  std::shared_ptr<const ledger> counts_ = std::make_shared<const ledger>();  // before any item
  bool is_failed_ = false;                                                   // the last item given
  bool has_run_dry_ = false;   // with the end given last
  std::optional<error> lost_;  // why there is no position to save
  scope::task pump_;
  bool started_ = false;
};

}  // namespace detail

template <class T>
stage<T, T> prefetch::for_items() const {
  return {.name = "prefetch",
          .wrap = [how = how](run_context& run,
                              std::unique_ptr<stream<T>> from) -> std::unique_ptr<stream<T>> {
            return std::make_unique<detail::prefetch_stream<T>>(run, std::move(from), how);
          },
          .announce = [n = how.items](downstream_needs& needs) { needs.batches_queued += n; },
          .keeps_order = true,
          .saves_snapshots = true};
}

// Compiled once, in the library (compiled_plans.cc).
extern template stage<sample, sample> prefetch::for_items() const;
extern template stage<image, image> prefetch::for_items() const;
extern template stage<host_batch, host_batch> prefetch::for_items() const;

}  // namespace millrace
