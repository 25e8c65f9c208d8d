#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pipeline/fields.h"
#include "pipeline/run_context.h"

namespace millrace {

// The byte ranges that an item holds, to be replaced in place.
std::vector<bytes*> parts_of(sample& s);
std::vector<bytes*> parts_of(record& r);
std::vector<bytes*> parts_of(tuple_of_values& t);

template <class T>
concept has_parts = requires(T& item) { parts_of(item); };

namespace detail {
// Copies what `parts` point to into one piece of `memory`, and has them point there.
awaitable<result<void>> move_parts(std::shared_ptr<memory_share> memory, std::vector<bytes*> parts);
}  // namespace detail

// The same item with its bytes in memory of their own, so that it keeps no read buffer alive.
template <has_parts T>
awaitable<result<T>> compacted(std::shared_ptr<memory_share> memory, T item) {
  auto moved = co_await detail::move_parts(std::move(memory), parts_of(item));
  if (!moved) co_return moved.error();
  co_return item;
}

// Memory for a stage that puts items together. Lanes would wait for the read buffers that its items
// hold, while it waits for the lanes. Items that are not known to hold bytes stay as they are.
template <class T>
class collected_memory {
 public:
  collected_memory(run_context& run, const std::string& name)
      : sets_(2 + static_cast<std::size_t>(run.batches_queued)) {
    if constexpr (has_parts<T>) share_ = run.memory.share(name, 1_MiB, run.memory.budget() / 4);
  }

  // `item`, of this stage. Fails with no_memory where what is collected, with this one, is more
  // than would leave room for the batches that others still have.
  awaitable<result<T>> keep(T item) {
    if constexpr (has_parts<T>) {
      for (const bytes* part : parts_of(item)) held_ += part->size();
      if (held_ > share_->limit() / sets_) co_return too_much();
      co_return co_await compacted(share_, std::move(item));
    } else {
      co_return item;
    }
  }
  // What was collected has been passed on.
  void passed_on(std::vector<T>& items) {
    if constexpr (has_parts<T>) {
      for (T& item : items) {
        for (const bytes* part : parts_of(item)) held_ -= part->size();
      }
    }
  }

 private:
  error too_much() const {
    return error(errc::no_memory, share_->name() + " collects " + format_bytes(held_) +
                                      " of samples, and " + format_bytes(share_->limit() / sets_) +
                                      " are what the budget has for it")
        .hint("raise MILLRACE_MEMORY, make batches smaller, or decode before they are made");
  }

  std::size_t sets_;  // batches that there are at a time: in the making, with others, queued
  std::shared_ptr<memory_share> share_;
  std::size_t held_ = 0;
};

}  // namespace millrace
