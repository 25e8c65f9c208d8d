#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "pipeline/plan/run_context.h"
#include "pipeline/samples/fields.h"

namespace millrace {

// The byte ranges that an item holds, to be replaced in place. Valid until the item changes.
std::vector<bytes*> parts_of(sample& s);
std::vector<bytes*> parts_of(record& r);
std::vector<bytes*> parts_of(tuple_of_values& t);

// The bytes that are charged to `memory` for a sample: its blocks, each once.
std::size_t held_of(const memory_share& memory, const sample& s);

template <class T>
concept has_parts = requires(T& item) { parts_of(item); };

namespace detail {
// Copies the bytes of `parts` into one piece of `memory`, and makes the parts point there. Parts
// that are in `memory` already stay.
awaitable<result<void>> move_parts(std::shared_ptr<memory_share> memory, std::vector<bytes*> parts);

// The memory that a stage has for the samples of one batch.
struct collecting {
  std::string stage;
  std::size_t bytes = 0;

  error too_large(std::size_t sample) const;
  error too_much(std::size_t samples) const;
  std::string text() const;
};
}  // namespace detail

// The same item with its bytes in separate memory, so that it keeps no read buffer alive. Waits for
// that memory; fails with no_memory if it exceeds the share.
template <has_parts T>
awaitable<result<T>> compacted(std::shared_ptr<memory_share> memory, T item) {
  auto moved = co_await detail::move_parts(std::move(memory), parts_of(item));
  if (!moved) co_return moved.error();
  co_return item;
}

// Memory for a stage that groups items. Without it the lanes would wait for the read buffers that
// the stage's items hold, while the stage waits for the lanes. Items that are not known to hold
// bytes stay as they are. Spine only.
template <class T>
class collected_memory {
 public:
  // Claims a share of the run's budget: make it with the stage. `name` is used in errors.
  collected_memory(run_context& run, const std::string& name)
      : sets_(2 + static_cast<std::size_t>(run.downstream.batches_queued)) {
    if constexpr (has_parts<T>) share_ = run.memory.share(name, 1_MiB, run.memory.budget() / 4);
  }

  // Returns `item` with its bytes in this memory, for this stage to hold. Fails with no_memory if
  // that would leave too little room for the batches that others still hold, and with too_large
  // (skippable) if no batch could hold it.
  awaitable<result<T>> keep(T item) {
    if constexpr (has_parts<T>) {
      const std::size_t own = charge_of(size_of(item));
      if (own > limit()) co_return room().too_large(own);
      held_ += own;
      if (held_ > limit()) co_return room().too_much(held_);
      co_return co_await compacted(share_, std::move(item));
    } else {
      co_return item;
    }
  }
  // Call when the held items have been passed on.
  void passed_on(std::vector<T>& items) {
    if constexpr (has_parts<T>) {
      for (T& item : items) held_ -= charge_of(size_of(item));
    }
  }

 private:
  static std::size_t size_of(T& item) {
    std::size_t size = 0;
    for (const bytes* part : parts_of(item)) size += part->size();
    return size;
  }
  // Bytes of the budget for one batch.
  std::size_t limit() const { return share_->limit() / sets_; }
  detail::collecting room() const { return {share_->name(), limit()}; }

  std::size_t sets_;  // batches at a time: under construction, in use, queued
  std::shared_ptr<memory_share> share_;
  std::size_t held_ = 0;
};

}  // namespace millrace
