#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/result.h"
#include "engine/coroutines/awaitable.h"
#include "engine/memory/bytes.h"

namespace millrace {

// The source of memory for data. The default maps pages. engine_options::allocator is that of
// batches: a program with a GPU passes one that returns pinned memory. Called from any thread.
class host_allocator {
 public:
  virtual ~host_allocator() = default;
  // Returns `size` bytes; if `size` is at least 4096, they begin at a multiple of 4096. Throws
  // std::bad_alloc if there is no memory; any other exception ends the run (uncaught).
  virtual std::byte* allocate(std::size_t size) = 0;
  // Takes back what allocate(size) returned.
  virtual void release(std::byte* data, std::size_t size) noexcept = 0;
};
// The allocator that maps pages. Lives as long as the process.
host_allocator& default_host_allocator();

class memory_holder;
class memory_share;

// The bytes that a share charges for a block of `size`: whole pages from 64 KiB on. Use it to
// compare the memory held with a limit.
std::size_t charge_of(std::size_t size);

// Memory charged to a share but not yet allocated. The destructor returns the rest. Movable; one
// thread at a time.
class memory_reservation {
 public:
  memory_reservation() = default;
  memory_reservation(std::shared_ptr<memory_share> of, std::size_t size)
      : share_(std::move(of)), left_(size) {}
  memory_reservation(memory_reservation&& other) noexcept
      : share_(std::move(other.share_)), left_(std::exchange(other.left_, 0)) {}
  memory_reservation& operator=(memory_reservation&& other) noexcept;
  ~memory_reservation();

  // Allocates `size` bytes of it: at most what is left, rounded as by the share (whole pages from
  // 64 KiB on).
  buffer take(std::size_t size);
  // Undoes a take() whose bytes nobody else holds, without a moment in which others could get the
  // charge.
  void put_back(buffer taken) noexcept;
  // Splits off a separate reservation of `size` bytes, at most what is left.
  memory_reservation split(std::size_t size) {
    left_ -= size;
    return {share_, size};
  }
  // Bytes that are charged and not taken.
  std::size_t left() const { return left_; }

 private:
  std::shared_ptr<memory_share> share_;
  std::size_t left_ = 0;
};

// A part of the budget that belongs to one use, so that no use can starve another (that is what
// makes a deadlock impossible: each use can finish with its own share).
//
// Thread-safe. Returning memory allocates nothing, and so never fails. In a forked child nothing is
// returned: memory that the parent's threads held stays charged. Freed blocks of 64 KiB and more
// are kept for the next request of the same size, the most recently freed one first, because its
// lines may still be in the cache.
//
// If the host has no memory for a grant, all functions throw std::bad_alloc and leave the share
// unchanged.
class memory_share : public std::enable_shared_from_this<memory_share> {
 public:
  // `name` is used in errors. The allocator must outlive the share and all of its memory.
  memory_share(std::string name, std::size_t limit_bytes, host_allocator& allocator);
  ~memory_share();
  memory_share(const memory_share&) = delete;
  memory_share& operator=(const memory_share&) = delete;

  // Waits, first come first served, until `size` bytes are free. Fails at once with no_memory if
  // `size` exceeds the limit, or if all charged memory is kept by holders that wait themselves:
  // such a request could never be met. `who`: the holder on whose behalf it waits, if one keeps
  // memory of this share.
  awaitable<result<buffer>> acquire(std::size_t size, std::shared_ptr<memory_holder> who = nullptr);
  // Reserves `size` bytes without allocating them. Reserve before waiting for anything else, and
  // allocate when that wait is over: the allocation then gets the memory freed last.
  awaitable<result<memory_reservation>> reserve(std::size_t size,
                                                std::shared_ptr<memory_holder> who = nullptr);
  // Like acquire(), without waiting: an empty buffer if there is no free memory or others wait.
  buffer try_acquire(std::size_t size);

  // Changes the limit. Only before the first acquire.
  void set_limit(std::size_t bytes) { limit_ = bytes; }
  // The most bytes that may be charged to it at once.
  std::size_t limit() const { return limit_; }
  // Bytes that are charged at present, reserved ones included.
  std::size_t in_use() const;
  // Whether somebody waits for memory and none has been returned since the last call.
  bool is_starved();
  // The name that errors call it by.
  const std::string& name() const { return name_; }

 private:
  friend class memory_holder;
  friend class memory_reservation;
  struct state;
  class charged_block;
  struct waiter;
  buffer take(std::size_t size);
  void give_back(std::byte* data, std::size_t size) noexcept;
  void uncharge(std::size_t size) noexcept;
  error why_hopeless(const waiter& first, std::size_t kept) const noexcept;

  std::string name_;
  std::size_t limit_;
  std::unique_ptr<state> state_;
};

// For users that take memory of a share piece by piece and keep the pieces while they wait for
// more: a block that is checked as a whole, samples that are delivered together. The holder tells
// the share what it keeps and which requests are made on its behalf, so that the share can detect
// when the waiting holders keep all of its memory: an error with their names instead of a deadlock.
//
// A wait that could end is never reported: memory counts as kept only through the reference held
// here, and only while a request of its holder waits. Let go before waiting for anything else.
//
// Thread-safe.
class memory_holder {
 public:
  memory_holder(std::shared_ptr<memory_share> of, std::string name)
      : share_(std::move(of)), name_(std::move(name)) {}

  // Keeps `piece`, and its block charged, until let_go(). Bytes of other memory are not counted.
  void keep(const bytes& piece);
  // Releases the kept pieces.
  void let_go();

 private:
  friend class memory_share;
  std::shared_ptr<memory_share> share_;
  std::string name_;
  std::map<const std::byte*, bytes> kept_;  // by block; guarded by the share
};

// Collects the needs of a plan's stages, then divides the budget among them.
class memory_plan {
 public:
  explicit memory_plan(std::size_t budget_bytes) : budget_(budget_bytes) {}

  // A share that gets at least `least` bytes and, if there is room, up to `most`.
  std::shared_ptr<memory_share> share(std::string name, std::size_t least, std::size_t most,
                                      host_allocator& allocator = default_host_allocator());

  // A share that also gets the memory that no other share requested; several such shares get equal
  // parts.
  void take_rest(const std::shared_ptr<memory_share>& share);

  // Called at the end of divide(), when the limits are set.
  void when_divided(std::function<void()> what) { when_divided_.push_back(std::move(what)); }

  // Sets every share's limit. Fails with no_memory, naming the budget that would suffice, if the
  // budget is below the sum of the minimums.
  result<void> divide();

  // The bytes that are divided.
  std::size_t budget() const { return budget_; }
  // Describes the starved shares, such as "lane 3 reads (64.0 MiB)"; empty: none.
  std::string starved();

 private:
  struct claim {
    std::shared_ptr<memory_share> share;
    std::size_t least;
    std::size_t most;
    bool takes_rest = false;
  };
  std::size_t budget_;
  std::vector<claim> claims_;
  std::vector<std::function<void()>> when_divided_;
};

}  // namespace millrace
