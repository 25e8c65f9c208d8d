#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "engine/base/result.h"
#include "engine/coroutines/awaitable.h"
#include "pipeline/plan/ledger.h"
#include "pipeline/state/state.h"

namespace millrace {

// A running stage: derive from it to write your own (examples/own_stage.cc, docs/stages.md). Lives
// on one I/O thread (the spine): no locks, one next() at a time, and no blocking; offload() moves
// work to the pool.
template <class T>
class stream {
 public:
  using value_type = T;
  // An item, the end of an epoch (nullopt), or an error.
  using outcome = result<std::optional<T>>;
  static_assert(std::is_nothrow_move_constructible_v<T>,
                "items are moved on where nothing may fail; put what may throw, such as a "
                "std::deque, into a std::unique_ptr");

  virtual ~stream() = default;

  // The next item. nullopt ends an epoch; the next call begins the next epoch, or returns nullopt
  // again if there is none. After a skippable error the stream continues after the item that
  // failed; after any other error it is not called again: the consumer of the stage gets the same
  // error again.
  virtual awaitable<outcome> next() = 0;
  // After the end of an epoch: whether that was given because there was no item in a hundred epochs
  // in a row (counting.h), so that a consumer that asks on will probably get none either.
  virtual bool has_run_dry() const { return false; }

  // The consumer is done with the item that failed in the last call, and may not ask this stream
  // again before a state is saved: another lane is next. From here on this stage and those before
  // it save the position after that item. A stage that does not override this saves the item once
  // more.
  virtual void leave_failed() {}

  // Adds the state from which this stage and those before it continue with exactly the next item.
  // Called between two calls of next(), or during one that waits for an earlier stage. After an
  // error, and until the next call or leave_failed(), a stage saves the position before the item
  // that failed. The caller saves the position of an item that the stage took in that call and no
  // longer holds.
  virtual void save(state& to) const = 0;
  // Whether the next call gives an item, rather than an end or an error, without waiting, as far as
  // the stage knows: a run then takes it together with the last one.
  virtual bool has_item_ready() const { return false; }
  // Called before next(), which may be under way when a state is asked for: the state before that
  // item, if this stage stores it (prefetch does), so that save() need not wait for the item; null:
  // it does not.
  virtual std::shared_ptr<const state> kept_state() const { return nullptr; }
  // For a stage that takes items ahead of its consumer: the counts at the time when the item that
  // it gave last was made; null: the present counts.
  virtual std::shared_ptr<const ledger> kept_counts() const { return nullptr; }
  // Continues from a saved state. Called once, before the first next(). Throws `failure`
  // (bad_state) if `from` does not fit; the stream must then not be used.
  virtual void restore(const state& from) = 0;
};

namespace detail {

// A stage that holds nothing but the stream before it, as most do.
template <class T>
class passing : public stream<T> {
 public:
  explicit passing(std::unique_ptr<stream<T>> items) : items_(std::move(items)) {}
  bool has_run_dry() const override { return items_->has_run_dry(); }
  void leave_failed() override { items_->leave_failed(); }
  void save(state& to) const override { items_->save(to); }
  void restore(const state& from) override { items_->restore(from); }

 protected:
  std::unique_ptr<stream<T>> items_;
};

}  // namespace detail
}  // namespace millrace
