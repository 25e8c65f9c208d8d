#include "engine/memory/work_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "engine/base/process_wide.h"
#include "engine/base/units.h"

namespace millrace {
namespace {

constexpr std::size_t for_the_process = 512_MiB;
// Charges grow by steps of this many bytes, so that many small requests take one lock.
constexpr std::size_t step = 256_KiB;

thread_local work_memory* memory_of_thread = nullptr;
thread_local work_meter* meter_of_thread = nullptr;

}  // namespace

struct work_memory::use {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t bytes = 0;    // guarded by mutex
  std::size_t waiting = 0;  // guarded by mutex
};

work_memory::work_memory(std::size_t limit_bytes)
    : limit_(limit_bytes), use_(std::make_unique<use>()) {}

work_memory::~work_memory() = default;

work_memory& work_memory::of_process() {
  struct own {
    work_memory memory{for_the_process};
  };
  return process_wide<own>().memory;
}

work_memory& work_memory::current() {
  return memory_of_thread != nullptr ? *memory_of_thread : of_process();
}

std::size_t work_memory::in_use() const {
  const std::scoped_lock lock(use_->mutex);
  return use_->bytes;
}

// Not while others wait, or memory for large work would never accumulate.
bool work_memory::try_take(std::size_t bytes) {
  const std::scoped_lock lock(use_->mutex);
  if (use_->waiting > 0 || bytes > limit_ || use_->bytes > limit_ - bytes) return false;
  use_->bytes += bytes;
  return true;
}

void work_memory::wait_for(std::size_t bytes) {
  std::unique_lock lock(use_->mutex);
  ++use_->waiting;
  use_->changed.wait(lock, [&] { return bytes <= limit_ && use_->bytes <= limit_ - bytes; });
  --use_->waiting;
  use_->bytes += bytes;
}

void work_memory::give_back(std::size_t bytes) {
  if (bytes == 0) return;
  {
    const std::scoped_lock lock(use_->mutex);
    use_->bytes -= std::min(bytes, use_->bytes);  // a forked child begins with nothing in use
  }
  use_->changed.notify_all();
}

work_memory_scope::work_memory_scope(work_memory& memory)
    : before_(std::exchange(memory_of_thread, &memory)) {}

work_memory_scope::~work_memory_scope() {
  memory_of_thread = before_;
}

work_meter::work_meter(work_memory& memory, std::size_t reserved)
    : memory_(memory), before_(meter_of_thread), charged_(reserved) {
  if (reserved > 0) memory_.wait_for(reserved);
  meter_of_thread = this;
}

work_meter::~work_meter() {
  meter_of_thread = before_;
  memory_.give_back(charged_);
}

work_meter* work_meter::of_thread() {
  return meter_of_thread;
}

bool work_meter::take(std::size_t bytes) {
  // Sizes come from files.
  constexpr std::size_t absurd = std::size_t{1} << 60;
  const std::size_t all = taken_ + std::min(bytes, absurd);
  const std::size_t needed = all > free_bytes ? all - free_bytes : 0;
  if (needed > charged_) {
    const std::size_t more =
        std::min(round_up(needed - charged_, step), std::max(needed, memory_.limit()) - charged_);
    if (!memory_.try_take(more)) {
      wanted_ = std::max(wanted_, needed);
      return false;
    }
    charged_ += more;
  }
  taken_ = all;
  return true;
}

void work_meter::give(std::size_t bytes) {
  taken_ -= std::min(bytes, taken_);
}

bool detail::can_reserve(const work_meter& refused, const work_memory& memory,
                         std::size_t& reserved) {
  if (refused.wanted() > memory.limit()) return false;
  // Work that does not know its need in advance soon reaches the next bound.
  reserved = std::min(memory.limit(), std::max(refused.wanted(), 2 * reserved));
  return true;
}

error detail::needs_too_much(std::size_t needed, const work_memory& memory) {
  return error(errc::too_large,
               fmt::format("decoding needs {} of memory, and at most {} are allowed for it",
                           format_bytes(needed + work_meter::free_bytes),
                           format_bytes(memory.limit())))
      .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)")
      .skippable();
}

}  // namespace millrace
