#include "engine/memory/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <new>

#include "engine/base/process_wide.h"
#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/posted_call.h"

namespace millrace {
namespace {

constexpr std::size_t mapped_from_bytes = 64_KiB;
constexpr std::size_t huge_page_bytes = 2_MiB;

// Large blocks have their own mappings: they return to the system whole, and never fragment.
class page_allocator final : public host_allocator {
 public:
  std::byte* allocate(std::size_t size) override {
    if (size >= mapped_from_bytes) return size % huge_page_bytes == 0 ? map_huge(size) : map(size);
    const std::size_t alignment =
        size >= page_bytes ? page_bytes : 64;  // whole pages: for direct reads
    void* p = std::aligned_alloc(alignment, round_up(size, alignment));
    if (p == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* data, std::size_t size) noexcept override {
    if (size >= mapped_from_bytes) {
      munmap(data, size);
    } else {
      std::free(data);
    }
  }

 private:
  static std::byte* map(std::size_t size) {
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(p);
  }
  // One fault and one pinned page instead of 512 of each (docs/decisions.md, 17).
  static std::byte* map_huge(std::size_t size) {
    std::byte* p = map(size + huge_page_bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const std::size_t before = (huge_page_bytes - address % huge_page_bytes) % huge_page_bytes;
    if (before > 0) munmap(p, before);
    munmap(p + before + size, huge_page_bytes - before);
    madvise(p + before, size, MADV_HUGEPAGE);
    return p + before;
  }
};

}  // namespace

std::size_t charge_of(std::size_t size) {
  return size >= mapped_from_bytes ? round_up(size, page_bytes) : std::max<std::size_t>(size, 1);
}

host_allocator& default_host_allocator() {
  static page_allocator allocator;
  return allocator;
}

struct memory_share::waiter final : posted_call {
  waiter(const asio::any_io_executor& home, std::size_t bytes, std::shared_ptr<memory_holder> of)
      : posted_call(home), size(bytes), who(std::move(of)), turn(home) {}

  std::size_t size;
  std::shared_ptr<memory_holder> who;
  condition turn;
  bool given = false;
  std::optional<error> failed;

 private:
  // A condition belongs to its I/O thread, but memory may be returned on any thread.
  void run() override { turn.notify_all(); }
};

struct memory_share::state {
  explicit state(host_allocator& a) : allocator(a) {}

  // Blocks of one size: the idle ones, each with the address of the next in its first bytes, and
  // the number in use.
  struct idle_blocks {
    std::byte* first = nullptr;
    std::size_t in_use = 0;
  };
  struct given_block {
    std::size_t size;
    std::uint64_t counted_in;  // the last search for hopeless waits that visited it
  };
  using waiters = std::list<std::shared_ptr<waiter>>;

  const home_process process;
  std::mutex mutex;
  host_allocator& allocator;
  std::size_t charged = 0;  // guarded by mutex, like everything below
  std::size_t taken = 0;    // part of `charged`: memory in use
  std::size_t idle = 0;     // memory kept for the next request
  std::uint64_t returns = 0;
  std::uint64_t returns_seen = ~std::uint64_t{0};  // at the last is_starved()
  std::map<std::size_t, idle_blocks> idle_by_size;
  waiters waiting;
  std::map<const std::byte*, given_block> given;  // blocks of `taken`, by address
  std::uint64_t searches = 0;

  // The block of this share that contains `at`; null if none does.
  const std::byte* block_of(const std::byte* at) const {
    auto it = given.upper_bound(at);
    if (it == given.begin()) return nullptr;
    --it;
    return at < it->first + it->second.size ? it->first : nullptr;
  }

  void push_idle(idle_blocks& of, std::byte* data, std::size_t size) {
    std::memcpy(data, static_cast<const void*>(&of.first), sizeof of.first);
    of.first = data;
    idle += size;
  }
  std::byte* pop_idle(idle_blocks& of, std::size_t size) {
    std::byte* const data = of.first;
    std::memcpy(static_cast<void*>(&of.first), data, sizeof of.first);
    idle -= size;
    return data;
  }

  void drop_idle(std::size_t until_at_most) {
    for (auto it = idle_by_size.begin(); it != idle_by_size.end() && idle > until_at_most;) {
      auto& [size, blocks] = *it;
      while (blocks.first != nullptr && idle > until_at_most) {
        allocator.release(pop_idle(blocks, size), size);
      }
      const bool is_of_use = blocks.first != nullptr || blocks.in_use > 0;
      it = is_of_use ? std::next(it) : idle_by_size.erase(it);
    }
  }

  std::byte* allocate(std::size_t size, std::size_t limit) {
    if (taken + idle + size > limit) drop_idle(limit - std::min(limit, taken + size));
    try {
      std::byte* const made = allocator.allocate(size);
      if (made == nullptr) throw std::bad_alloc();
      return made;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (...) {
      throw failure(error_of(std::current_exception(), "the host_allocator"));
    }
  }

  // The bytes of this share kept by holders that wait for more.
  std::size_t kept_by_waiters();

  // Takes out of `waiting` those whose turn it is, and, if waiting holders keep all charged memory,
  // the first of them, with an error: it could never be served. Call it whenever less is charged,
  // more is kept, or a wait begins or ends. Mutex held.
  waiters who_can_end(const memory_share& of) noexcept;
  // The same, with the mutex, and wakes them.
  static void wake_who_can_end(const memory_share& of) noexcept;
  static void wake(const waiters& ready) noexcept {
    for (const auto& w : ready) w->post();
  }
};

// The destructor returns its memory, except in a forked child.
class memory_share::charged_block final : public block {
 public:
  charged_block() = default;
  ~charged_block() {
    if (!of_ || !of_->state_->process.is_this()) return;
    of_->give_back(data, charged_);
    if (!stays_charged_) of_->uncharge(charged_);
  }
  charged_block(const charged_block&) = delete;
  charged_block& operator=(const charged_block&) = delete;

  void take(std::shared_ptr<memory_share> of, std::byte* memory, std::size_t bytes,
            std::size_t charged) {
    data = memory;
    size = bytes;
    share = of.get();
    of_ = std::move(of);
    charged_ = charged;
  }
  const std::shared_ptr<memory_share>& of() const { return of_; }
  // Ends without releasing its charge, which it returns.
  std::size_t leave_charge() {
    stays_charged_ = true;
    return charged_;
  }

 private:
  std::shared_ptr<memory_share> of_;
  std::size_t charged_ = 0;
  bool stays_charged_ = false;
};

memory_share::memory_share(std::string name, std::size_t limit_bytes, host_allocator& allocator)
    : name_(std::move(name)), limit_(limit_bytes), state_(std::make_unique<state>(allocator)) {}

memory_share::~memory_share() {
  if (!state_->process.is_this()) {
    [[maybe_unused]] const state* const of_the_parent = state_.release();
    return;
  }
  state_->drop_idle(0);
}

std::size_t memory_share::in_use() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->charged;
}

bool memory_share::is_starved() {
  state& s = *state_;
  const std::scoped_lock lock(s.mutex);
  return std::exchange(s.returns_seen, s.returns) == s.returns && !s.waiting.empty();
}

// Mutex held; `size` is already charged, or will be. Everything that can fail comes before the
// first change.
buffer memory_share::take(std::size_t size) {
  state& s = *state_;
  const std::size_t needed = charge_of(size);
  auto made = std::make_shared<charged_block>();
  decltype(s.given) entry;
  entry.emplace(nullptr, state::given_block{needed, 0});
  auto of_given = entry.extract(entry.begin());
  std::byte* data = nullptr;
  if (needed >= mapped_from_bytes) {
    // An entry to return it to, which drop_idle() keeps while it is needed.
    struct user {
      state::idle_blocks& of;
      bool gives_up = true;
      explicit user(state::idle_blocks& b) : of(b) { ++of.in_use; }
      ~user() {
        if (gives_up) --of.in_use;
      }
    } use(s.idle_by_size[needed]);
    data = use.of.first != nullptr ? s.pop_idle(use.of, needed) : s.allocate(needed, limit_);
    use.gives_up = false;
  } else {
    data = s.allocate(needed, limit_);
  }
  of_given.key() = data;
  s.given.insert(std::move(of_given));
  s.taken += needed;
  made->take(shared_from_this(), data, size, needed);
  return buffer(std::move(made));
}

void memory_share::give_back(std::byte* data, std::size_t size) noexcept {
  state& s = *state_;
  const std::scoped_lock lock(s.mutex);
  s.given.erase(data);
  if (size >= mapped_from_bytes) {
    auto& blocks = s.idle_by_size.find(size)->second;
    --blocks.in_use;
    s.push_idle(blocks, data, size);
  } else {
    s.allocator.release(data, size);
  }
  s.taken -= size;
}

std::size_t memory_share::state::kept_by_waiters() {
  ++searches;
  std::size_t sum = 0;
  for (const auto& w : waiting) {
    if (!w->who) continue;
    for (const auto& [begin, piece] : w->who->kept_) {
      given_block& kept = given.at(begin);
      if (std::exchange(kept.counted_in, searches) != searches) sum += kept.size;
    }
  }
  return sum;
}

// Mutex held.
error memory_share::why_hopeless(const waiter& first, std::size_t kept) const noexcept {
  try {
    const state& s = *state_;
    std::map<const memory_holder*, std::string> who;
    for (const auto& w : s.waiting) {
      if (!w->who || w->who->kept_.empty()) continue;
      std::size_t of_one = 0;
      for (const auto& [begin, piece] : w->who->kept_) of_one += s.given.at(begin).size;
      who[w->who.get()] = fmt::format("{} keeps {}", w->who->name_, format_bytes(of_one));
    }
    std::string keepers;
    for (const auto& [holder, text] : who) keepers += (keepers.empty() ? "" : ", ") + text;
    return error(
               errc::no_memory,
               fmt::format("{} waits for {} of '{}', of which {} are kept by holders that wait for "
                           "more: {}; the share is {}",
                           first.who->name_, format_bytes(first.size), name_, format_bytes(kept),
                           keepers, format_bytes(limit_)))
        .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)");
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

memory_share::state::waiters memory_share::state::who_can_end(const memory_share& of) noexcept {
  waiters ready;
  while (!waiting.empty() && charged + waiting.front()->size <= of.limit_) {
    waiting.front()->given = true;
    charged += waiting.front()->size;
    ready.splice(ready.end(), waiting, waiting.begin());
  }
  const std::size_t kept = kept_by_waiters();
  if (kept > 0 && kept >= charged) {
    const auto first = std::ranges::find_if(
        waiting, [](const auto& w) { return w->who && !w->who->kept_.empty(); });
    (*first)->failed = of.why_hopeless(**first, kept);
    ready.splice(ready.end(), waiting, first);
  }
  return ready;
}

void memory_share::state::wake_who_can_end(const memory_share& of) noexcept {
  waiters ready;
  {
    const std::scoped_lock lock(of.state_->mutex);
    ready = of.state_->who_can_end(of);
  }
  wake(ready);
}

void memory_share::uncharge(std::size_t size) noexcept {
  state::waiters ready;
  {
    state& s = *state_;
    const std::scoped_lock lock(s.mutex);
    s.charged -= size;
    ++s.returns;
    ready = s.who_can_end(*this);
  }
  state::wake(ready);
}

buffer memory_share::try_acquire(std::size_t size) {
  state& s = *state_;
  const std::scoped_lock lock(s.mutex);
  const std::size_t needed = charge_of(size);
  if (!s.waiting.empty() || s.charged + needed > limit_) return {};
  buffer taken = take(size);
  s.charged += needed;
  return taken;
}

awaitable<result<buffer>> memory_share::acquire(std::size_t size,
                                                std::shared_ptr<memory_holder> who) {
  auto reserved = co_await reserve(charge_of(size), std::move(who));
  if (!reserved) co_return reserved.error();
  co_return reserved->take(size);
}

awaitable<result<memory_reservation>> memory_share::reserve(std::size_t size,
                                                            std::shared_ptr<memory_holder> who) {
  if (size > limit_) {
    co_return error(errc::no_memory, fmt::format("{} asked for {}, the share for '{}' is {}", name_,
                                                 format_bytes(size), name_, format_bytes(limit_)))
        .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)");
  }
  const auto executor = co_await this_executor;
  std::shared_ptr<waiter> mine;
  {
    state& s = *state_;
    const std::scoped_lock lock(s.mutex);
    if (s.waiting.empty() && s.charged + size <= limit_) {
      s.charged += size;
      co_return memory_reservation(shared_from_this(), size);
    }
    mine = std::make_shared<waiter>(executor, size, std::move(who));
    s.waiting.push_back(mine);
  }
  state::wake_who_can_end(*this);
  std::exception_ptr thrown;
  try {
    co_await mine->turn.wait();
  } catch (...) {
    thrown = std::current_exception();
  }
  std::optional<error> failed;
  {
    const std::scoped_lock lock(state_->mutex);
    failed = std::move(mine->failed);
    if (!mine->given && !failed) std::erase(state_->waiting, mine);
  }
  memory_reservation reserved(shared_from_this(), mine->given ? size : 0);
  if (!mine->given) state::wake_who_can_end(*this);  // later requests may fit
  if (thrown) std::rethrow_exception(thrown);
  if (mine->given) co_return reserved;
  co_return failed ? std::move(*failed) : error(errc::stopped, "stopped while waiting for memory");
}

void memory_holder::keep(const bytes& piece) {
  {
    memory_share::state& s = *share_->state_;
    const std::scoped_lock lock(s.mutex);
    const std::byte* const block = s.block_of(piece.data());
    if (block == nullptr) return;
    kept_.emplace(block, piece);
  }
  memory_share::state::wake_who_can_end(*share_);
}

void memory_holder::let_go() {
  std::map<const std::byte*, bytes> kept;  // released without the lock, which releasing takes
  const std::scoped_lock lock(share_->state_->mutex);
  kept_.swap(kept);
}

memory_reservation& memory_reservation::operator=(memory_reservation&& other) noexcept {
  std::swap(share_, other.share_);
  std::swap(left_, other.left_);
  return *this;
}

memory_reservation::~memory_reservation() {
  if (left_ > 0 && share_->state_->process.is_this()) share_->uncharge(left_);
}

buffer memory_reservation::take(std::size_t size) {
  const std::scoped_lock lock(share_->state_->mutex);
  buffer taken = share_->take(size);
  left_ -= charge_of(size);
  return taken;
}

void memory_reservation::put_back(buffer taken) noexcept {
  if (taken.owner().use_count() != 1) return;
  auto& ending = static_cast<memory_share::charged_block&>(*taken.owner());
  if (!share_) share_ = ending.of();
  left_ += ending.leave_charge();
}

}  // namespace millrace
