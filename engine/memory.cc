#include "engine/memory.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <charconv>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <new>

namespace millrace {
namespace {

constexpr std::size_t mapped_from = 64_KiB;
constexpr std::size_t huge_page = 2_MiB;

// Large blocks come from their own mapping: they go back to the system whole, and never fragment.
class page_allocator final : public host_allocator {
 public:
  std::byte* allocate(std::size_t size) override {
    if (size >= mapped_from) return size % huge_page == 0 ? map_huge(size) : map(size);
    const std::size_t alignment =
        size >= page_bytes ? page_bytes : 64;  // whole pages: for direct reads
    void* p = std::aligned_alloc(alignment, round_up(size, alignment));
    if (p == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* data, std::size_t size) noexcept override {
    if (size >= mapped_from) {
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
  // One fault and one pinned page in place of 512 of each (docs/decisions.md, 17).
  static std::byte* map_huge(std::size_t size) {
    std::byte* p = map(size + huge_page);
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    const std::size_t before = (huge_page - address % huge_page) % huge_page;
    if (before > 0) munmap(p, before);
    munmap(p + before + size, huge_page - before);
    madvise(p + before, size, MADV_HUGEPAGE);
    return p + before;
  }
};

struct waiter {
  std::size_t size;
  asio::steady_timer timer;  // expires never; cancelled when it is this waiter's turn
  bool given = false;
};

std::size_t charge_of(std::size_t size) {
  return size >= mapped_from ? round_up(size, page_bytes) : std::max<std::size_t>(size, 1);
}

}  // namespace

host_allocator& default_host_allocator() {
  static page_allocator allocator;
  return allocator;
}

struct memory_share::state {
  explicit state(host_allocator& a) : allocator(a) {}

  std::mutex mutex;
  host_allocator& allocator;
  std::size_t charged = 0;  // guarded by mutex, like everything below
  std::size_t taken = 0;    // of it: memory that is in use
  std::size_t idle = 0;     // memory kept for the next
  std::uint64_t returns = 0;
  std::uint64_t returns_seen = ~std::uint64_t{0};  // when is_starved() was asked last
  std::map<std::size_t, std::vector<std::byte*>> idle_by_size;
  std::deque<std::shared_ptr<waiter>> waiting;

  void drop_idle(std::size_t until_at_most) {
    for (auto it = idle_by_size.begin(); it != idle_by_size.end() && idle > until_at_most;) {
      auto& [size, blocks] = *it;
      while (!blocks.empty() && idle > until_at_most) {
        allocator.release(blocks.back(), size);
        blocks.pop_back();
        idle -= size;
      }
      it = blocks.empty() ? idle_by_size.erase(it) : std::next(it);
    }
  }
};

memory_share::memory_share(std::string name, std::size_t limit_bytes, host_allocator& allocator)
    : name_(std::move(name)), limit_(limit_bytes), state_(std::make_unique<state>(allocator)) {}

memory_share::~memory_share() {
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

// Mutex held; `size` is charged already.
buffer memory_share::take(std::size_t size) {
  state& s = *state_;
  const std::size_t needed = charge_of(size);
  std::byte* data = nullptr;
  if (auto it = s.idle_by_size.find(needed); it != s.idle_by_size.end() && !it->second.empty()) {
    data = it->second.back();
    it->second.pop_back();
    s.idle -= needed;
  } else {
    if (s.taken + s.idle + needed > limit_) {
      s.drop_idle(limit_ - std::min(limit_, s.taken + needed));
    }
    data = s.allocator.allocate(needed);
  }
  s.taken += needed;
  auto give_back = [self = shared_from_this(), needed](block* b) {
    {
      state& st = *self->state_;
      const std::scoped_lock lock(st.mutex);
      if (needed >= mapped_from) {
        st.idle_by_size[needed].push_back(b->data);
        st.idle += needed;
      } else {
        st.allocator.release(b->data, needed);
      }
      st.taken -= needed;
    }
    delete b;
    self->uncharge(needed);
  };
  return buffer(std::shared_ptr<block>(new block{data, size}, std::move(give_back)));
}

void memory_share::uncharge(std::size_t size) {
  std::deque<std::shared_ptr<waiter>> ready;
  {
    state& s = *state_;
    const std::scoped_lock lock(s.mutex);
    s.charged -= size;
    ++s.returns;
    while (!s.waiting.empty() && s.charged + s.waiting.front()->size <= limit_) {
      s.waiting.front()->given = true;
      s.charged += s.waiting.front()->size;
      ready.push_back(std::move(s.waiting.front()));
      s.waiting.pop_front();
    }
  }
  // A timer belongs to its I/O thread, and memory may be given back on any thread.
  for (auto& w : ready) {
    auto executor = w->timer.get_executor();
    asio::post(executor, [w = std::move(w)] { w->timer.cancel(); });
  }
}

buffer memory_share::try_acquire(std::size_t size) {
  state& s = *state_;
  const std::scoped_lock lock(s.mutex);
  const std::size_t needed = charge_of(size);
  if (!s.waiting.empty() || s.charged + needed > limit_) return {};
  s.charged += needed;
  return take(size);
}

awaitable<result<buffer>> memory_share::acquire(std::size_t size) {
  auto reserved = co_await reserve(charge_of(size));
  if (!reserved) co_return reserved.error();
  co_return reserved->take(size);
}

awaitable<result<memory_reservation>> memory_share::reserve(std::size_t size) {
  if (size > limit_) {
    co_return error(errc::no_memory, fmt::format("{} asked for {}, the share for '{}' is {}", name_,
                                                 format_bytes(size), name_, format_bytes(limit_)))
        .hint("raise MILLRACE_MEMORY")
        .skippable();
  }
  auto executor = co_await asio::this_coro::executor;
  std::shared_ptr<waiter> mine;
  {
    state& s = *state_;
    const std::scoped_lock lock(s.mutex);
    if (s.waiting.empty() && s.charged + size <= limit_) {
      s.charged += size;
      co_return memory_reservation(shared_from_this(), size);
    }
    mine = std::make_shared<waiter>(size,
                                    asio::steady_timer(executor, steady_clock::time_point::max()));
    s.waiting.push_back(mine);
  }
  co_await mine->timer.async_wait(no_throw);
  {
    const std::scoped_lock lock(state_->mutex);
    if (!mine->given) std::erase(state_->waiting, mine);
  }
  if (!mine->given) co_return error(errc::stopped, "stopped while waiting for memory");
  co_return memory_reservation(shared_from_this(), size);
}

memory_reservation& memory_reservation::operator=(memory_reservation&& other) noexcept {
  std::swap(share_, other.share_);
  std::swap(left_, other.left_);
  return *this;
}

memory_reservation::~memory_reservation() {
  if (left_ > 0) share_->uncharge(left_);
}

buffer memory_reservation::take(std::size_t size) {
  const std::scoped_lock lock(share_->state_->mutex);
  buffer taken = share_->take(size);
  left_ -= charge_of(size);
  return taken;
}

std::shared_ptr<memory_share> memory_plan::share(std::string name, std::size_t least,
                                                 std::size_t most, host_allocator& allocator) {
  auto made = std::make_shared<memory_share>(std::move(name), least, allocator);
  claims_.push_back({made, least, std::max(least, most)});
  return made;
}

result<void> memory_plan::divide() {
  std::size_t least = 0;
  std::size_t wanted = 0;
  for (const claim& c : claims_) {
    least += c.least;
    wanted += c.most - c.least;
  }
  if (least > budget_) {
    std::string parts;
    for (const claim& c : claims_) {
      parts +=
          fmt::format("{}{} {}", parts.empty() ? "" : ", ", c.share->name(), format_bytes(c.least));
    }
    return error(errc::no_memory, fmt::format("the plan needs {} ({}), the budget is {}",
                                              format_bytes(least), parts, format_bytes(budget_)))
        .hint(fmt::format("set MILLRACE_MEMORY={}M or more, or lower the batch size, the read "
                          "extent or the number of lanes",
                          (least + 1_MiB - 1) / 1_MiB));
  }
  const std::size_t spare = std::min(budget_ - least, wanted);
  for (const claim& c : claims_) {
    const auto part = wanted == 0 ? 0.0
                                  : static_cast<double>(c.most - c.least) *
                                        static_cast<double>(spare) / static_cast<double>(wanted);
    c.share->set_limit(c.least + static_cast<std::size_t>(part));
  }
  for (const auto& what : when_divided_) what();
  return {};
}

std::string memory_plan::starved() {
  std::string out;
  for (const claim& c : claims_) {
    if (!c.share->is_starved()) continue;
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", c.share->name(),
                       format_bytes(c.share->limit()));
  }
  return out;
}

namespace {

std::optional<double> first_number(const char* path, int index = 0) {
  std::ifstream in(path);
  std::string word;
  for (int i = 0; i <= index; ++i) {
    if (!(in >> word)) return std::nullopt;
  }
  if (word == "max") return std::nullopt;
  return std::strtod(word.c_str(), nullptr);
}

}  // namespace

std::size_t allowed_memory_bytes() {
  struct sysinfo info{};
  sysinfo(&info);
  auto total = static_cast<double>(info.totalram) * info.mem_unit;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const auto limit = first_number(path)) total = std::min(total, *limit);
  }
  return static_cast<std::size_t>(total);
}

std::size_t default_memory_bytes() {
  return std::min<std::size_t>(allowed_memory_bytes() / 4, 4_GiB);
}

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const auto quota = first_number("/sys/fs/cgroup/cpu.max", 0);
  const auto period = first_number("/sys/fs/cgroup/cpu.max", 1);
  if (quota && period && *period > 0) {
    cpus = std::min(cpus, static_cast<int>((*quota + *period - 1) / *period));
  }
  return std::max(cpus, 1);
}

result<std::size_t> parse_bytes(std::string_view text) {
  std::size_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  static constexpr std::string_view prefixes = "KMGT";
  std::size_t shift = 0;
  bool known = unit.empty() || unit == "B";
  if (!known) {
    const char upper = static_cast<char>(unit[0] & ~0x20);
    const auto at = prefixes.find(upper);
    const auto rest = unit.substr(1);
    known = at != std::string_view::npos && (rest.empty() || rest == "B" || rest == "iB");
    shift = known ? 10 * (at + 1) : 0;
  }
  if (failed != std::errc{} || !known || (shift > 0 && number > (~std::size_t{0} >> shift))) {
    return error(errc::usage, fmt::format("'{}' is not a size", text))
        .hint("write a number of bytes, or a number with K, M, G or T");
  }
  return number << shift;
}

std::string format_bytes(std::size_t bytes) {
  const auto n = static_cast<double>(bytes);
  if (bytes >= 1_GiB) return fmt::format("{:.1f} GiB", n / 0x1p30);
  if (bytes >= 1_MiB) return fmt::format("{:.1f} MiB", n / 0x1p20);
  if (bytes >= 1_KiB) return fmt::format("{:.1f} KiB", n / 0x1p10);
  return fmt::format("{} B", bytes);
}

}  // namespace millrace
