#include "tests/simulation/allocations.h"

#include <execinfo.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/unhooked.h"

// Asio allocates its operations and the frames of coroutines with this, not with operator new: the
// program is linked with --wrap=aligned_alloc.
extern "C" void* __real_aligned_alloc(std::size_t alignment, std::size_t size);

namespace millrace::testing {
namespace {

constinit bool armed = false;
constinit bool lasting = false;
constinit std::uint64_t failing = 0;
constinit std::uint64_t counted = 0;
constinit std::atomic<std::int64_t> blocks = 0;

bool fails() {
  if (!armed || unhooked::depth > 0) return false;
  ++counted;
  if (counted == failing && std::getenv("TEST_SIM_WHERE") != nullptr) {
    const unhooked here;
    std::array<void*, 60> at;
    backtrace_symbols_fd(at.data(), backtrace(at.data(), at.size()), 2);
  }
  return failing != 0 && (lasting ? counted >= failing : counted == failing);
}

}  // namespace

void allocations::arm(std::uint64_t nth, bool for_ever) {
  failing = nth;
  lasting = for_ever;
  counted = 0;
  armed = true;
}

void allocations::relent() {
  if (lasting) failing = 0;
}

std::uint64_t allocations::disarm() {
  armed = false;
  return counted;
}

std::int64_t allocations::live() {
  return blocks.load(std::memory_order_relaxed);
}

namespace {

void* allocate(std::size_t size, std::size_t alignment) {
  if (fails()) return nullptr;
  void* const p = alignment == 0 ? std::malloc(size > 0 ? size : 1)
                                 : __real_aligned_alloc(
                                       alignment, (size + alignment - 1) / alignment * alignment);
  if (p != nullptr) blocks.fetch_add(1, std::memory_order_relaxed);
  return p;
}

void release(void* p) {
  if (p == nullptr) return;
  blocks.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}

void* allocate_for_c(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : __real_aligned_alloc(alignment, size);
}

}  // namespace
}  // namespace millrace::testing

extern "C" void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return millrace::testing::allocate_for_c(alignment, size);
}

void* operator new(std::size_t size) {
  if (void* const p = millrace::testing::allocate(size, 0)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  if (void* const p = millrace::testing::allocate(size, static_cast<std::size_t>(alignment))) {
    return p;
  }
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  millrace::testing::release(p);
}
void operator delete(void* p, std::size_t /*size*/) noexcept {
  millrace::testing::release(p);
}
void operator delete(void* p, std::align_val_t /*alignment*/) noexcept {
  millrace::testing::release(p);
}
void operator delete(void* p, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  millrace::testing::release(p);
}
