#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>

namespace millrace {

// A lock-free bounded queue for any number of producers and consumers: a ring of cells, each with a
// sequence number that says whose turn it is. First in, first out.
//
// Source: Dmitry Vyukov, "Bounded MPMC queue" (1024cores.net). It synchronises by acquire and
// release on the cells only, which ThreadSanitizer understands (docs/decisions.md, 4).
template <class T>
class bounded_queue {
 public:
  // Room for at least `capacity` items (rounded up to a power of two).
  explicit bounded_queue(std::size_t capacity)
      : mask_(std::bit_ceil(capacity) - 1), cells_(std::make_unique<cell[]>(mask_ + 1)) {
    for (std::size_t i = 0; i <= mask_; ++i) {
      cells_[i].sequence.store(i, std::memory_order_relaxed);
    }
  }

  // False when the queue is full.
  bool try_push(T item) {
    std::size_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      cell& c = cells_[at & mask_];
      const std::size_t sequence = c.sequence.load(std::memory_order_acquire);
      if (sequence == at) {
        if (tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
          c.item = std::move(item);
          c.sequence.store(at + 1, std::memory_order_release);
          return true;
        }
      } else if (sequence < at) {
        return false;
      } else {
        at = tail_.load(std::memory_order_relaxed);
      }
    }
  }

  // False when the queue is empty, or its first item is still being written.
  bool try_pop(T& item) {
    std::size_t at = head_.load(std::memory_order_relaxed);
    for (;;) {
      cell& c = cells_[at & mask_];
      const std::size_t sequence = c.sequence.load(std::memory_order_acquire);
      if (sequence == at + 1) {
        if (head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
          item = std::move(c.item);
          c.sequence.store(at + mask_ + 1, std::memory_order_release);
          return true;
        }
      } else if (sequence < at + 1) {
        return false;
      } else {
        at = head_.load(std::memory_order_relaxed);
      }
    }
  }

 private:
  static constexpr std::size_t cache_line = 64;
  struct cell {
    std::atomic<std::size_t> sequence;
    T item{};
  };

  const std::size_t mask_;
  const std::unique_ptr<cell[]> cells_;
  alignas(cache_line) std::atomic<std::size_t> tail_ = 0;
  alignas(cache_line) std::atomic<std::size_t> head_ = 0;
};

}  // namespace millrace
