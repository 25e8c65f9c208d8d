#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/result.h"

namespace millrace {

// Memory that decoders need while they work (coefficients of progressive images, unpacked fields,
// trees of JSON), counted over all threads that share it. Thread-safe.
//
// A piece of work takes what it needs without waiting. If that is refused, the work is abandoned,
// its memory is returned, and it is repeated with that much reserved from the start. Nobody holds
// memory while waiting, so nobody waits forever. It fails only if it alone needs more than the
// limit.
class work_memory {
 public:
  // At most `limit_bytes` are in use at once.
  explicit work_memory(std::size_t limit_bytes);
  ~work_memory();
  work_memory(const work_memory&) = delete;
  work_memory& operator=(const work_memory&) = delete;

  // Changes the limit. Only before the first use.
  void set_limit(std::size_t bytes) { limit_ = bytes; }
  // The most bytes in use at once.
  std::size_t limit() const { return limit_; }
  // Bytes that pieces of work have taken or reserved at present.
  std::size_t in_use() const;

  // The work memory of this thread: that of the innermost work_memory_scope, else the process's.
  static work_memory& current();
  // The process's: 512 MiB, whatever the budget.
  static work_memory& of_process();

 private:
  friend class work_meter;
  bool try_take(std::size_t bytes);
  void wait_for(std::size_t bytes);
  void give_back(std::size_t bytes);

  struct use;
  std::size_t limit_;
  std::unique_ptr<use> use_;
};

// While it lives, `memory` is current() on this thread.
class work_memory_scope {
 public:
  // `memory` must outlive it.
  explicit work_memory_scope(work_memory& memory);
  ~work_memory_scope();
  work_memory_scope(const work_memory_scope&) = delete;
  work_memory_scope& operator=(const work_memory_scope&) = delete;

 private:
  work_memory* before_;
};

// The memory that one piece of work has taken. One thread; see metered().
class work_meter {
 public:
  // The first bytes of each piece of work are not counted, so that small work costs no lock.
  static constexpr std::size_t free_bytes = 1 << 20;

  // Waits until it can reserve `reserved` bytes beyond the uncounted ones.
  work_meter(work_memory& memory, std::size_t reserved);
  ~work_meter();
  work_meter(const work_meter&) = delete;
  work_meter& operator=(const work_meter&) = delete;

  // The one of this thread's work, nullptr outside of metered().
  static work_meter* of_thread();

  // False if there is not enough memory: the work must then end, with any error.
  bool take(std::size_t bytes);
  // Returns bytes that were taken: to this piece of work, which may take them again.
  void give(std::size_t bytes);

  // Whether a take() failed: the work is to be repeated with wanted() bytes reserved.
  bool was_refused() const { return wanted_ > 0; }
  // The bytes to reserve for another try.
  std::size_t wanted() const { return wanted_; }

 private:
  work_memory& memory_;
  work_meter* before_;
  std::size_t taken_ = 0;
  std::size_t charged_;
  std::size_t wanted_ = 0;
};

// For code within metered(): takes `bytes` for the rest of the work, or until they are returned.
// True outside of metered(), where nothing is counted.
inline bool take_work_memory(std::size_t bytes) {
  work_meter* meter = work_meter::of_thread();
  return meter == nullptr || meter->take(bytes);
}
// Returns what take_work_memory() took.
inline void give_work_memory(std::size_t bytes) {
  if (work_meter* meter = work_meter::of_thread()) meter->give(bytes);
}

// Returns large memory that a decoder keeps between pieces of work to the system. Call at the end
// of the work.
template <class T>
void drop_large(std::vector<T>& kept) {
  if (kept.capacity() * sizeof(T) > work_meter::free_bytes) kept = {};
}

namespace detail {
// Whether to try again, and with how much.
bool can_reserve(const work_meter& refused, const work_memory& memory, std::size_t& reserved);
error needs_too_much(std::size_t needed, const work_memory& memory);
}  // namespace detail

// Does a piece of work that returns a result<T>, and counts its memory in work_memory::current().
// `f` may be called several times. Within another piece of work it is a part of that. Blocks while
// other threads' work holds the memory it needs. Fails with too_large (skippable) if it needs more
// than the limit.
template <class F>
std::invoke_result_t<F&> metered(F&& f) {
  if (work_meter::of_thread() != nullptr) return f();
  work_memory& memory = work_memory::current();
  for (std::size_t reserved = 0;;) {
    work_meter meter(memory, reserved);
    auto done = f();
    if (!meter.was_refused()) return done;
    if (!detail::can_reserve(meter, memory, reserved)) {
      return detail::needs_too_much(meter.wanted(), memory);
    }
  }
}

}  // namespace millrace
