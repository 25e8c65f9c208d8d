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

constexpr std::size_t page = 4096;
constexpr std::size_t mapped_from = 1_MiB;

std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Large blocks come from their own mapping: they go back to the system whole, and never fragment.
class page_allocator final : public host_allocator {
 public:
  std::byte* allocate(std::size_t size) override {
    if (size >= mapped_from) {
      void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (p == MAP_FAILED) throw std::bad_alloc();
      return static_cast<std::byte*>(p);
    }
    void* p = std::aligned_alloc(64, round_up(size, 64));
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
};

struct waiter {
  std::size_t size;
  asio::steady_timer timer;  // expires never; cancelled when it is this waiter's turn
  buffer given;
};

}  // namespace

host_allocator& default_host_allocator() {
  static page_allocator allocator;
  return allocator;
}

struct memory_share::state {
  explicit state(host_allocator& a) : allocator(a) {}

  std::mutex mutex;
  host_allocator& allocator;
  std::size_t in_use = 0;  // guarded by mutex, like everything below
  std::size_t idle = 0;
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
  return state_->in_use;
}

// Mutex held. `size` has been found to fit.
buffer memory_share::take(std::size_t size) {
  state& s = *state_;
  const std::size_t charged =
      size >= mapped_from ? round_up(size, page) : std::max<std::size_t>(size, 1);
  std::byte* data = nullptr;
  if (auto it = s.idle_by_size.find(charged); it != s.idle_by_size.end() && !it->second.empty()) {
    data = it->second.back();
    it->second.pop_back();
    s.idle -= charged;
  } else {
    if (s.in_use + s.idle + charged > limit_) {
      s.drop_idle(limit_ - std::min(limit_, s.in_use + charged));
    }
    data = s.allocator.allocate(charged);
  }
  s.in_use += charged;
  auto give_back = [self = shared_from_this(), charged](block* b) {
    std::deque<std::shared_ptr<waiter>> ready;
    {
      state& st = *self->state_;
      const std::scoped_lock lock(st.mutex);
      if (charged >= mapped_from) {
        st.idle_by_size[charged].push_back(b->data);
        st.idle += charged;
      } else {
        st.allocator.release(b->data, charged);
      }
      st.in_use -= charged;
      while (!st.waiting.empty() && st.in_use + st.waiting.front()->size <= self->limit_) {
        st.waiting.front()->given = self->take(st.waiting.front()->size);
        ready.push_back(std::move(st.waiting.front()));
        st.waiting.pop_front();
      }
    }
    delete b;
    // A timer belongs to its I/O thread, and a block may be dropped on any thread.
    for (auto& w : ready) {
      auto executor = w->timer.get_executor();
      asio::post(executor, [w = std::move(w)] { w->timer.cancel(); });
    }
  };
  return buffer(std::shared_ptr<block>(new block{data, size}, std::move(give_back)));
}

buffer memory_share::try_acquire(std::size_t size) {
  const std::scoped_lock lock(state_->mutex);
  if (!state_->waiting.empty() || state_->in_use + round_up(size, page) > limit_) return {};
  return take(size);
}

awaitable<result<buffer>> memory_share::acquire(std::size_t size) {
  const std::size_t needed = size >= mapped_from ? round_up(size, page) : size;
  if (needed > limit_) {
    co_return error(errc::no_memory, fmt::format("{} asked for {}, the share for '{}' is {}", name_,
                                                 format_bytes(needed), name_, format_bytes(limit_)))
        .hint("raise MILLRACE_MEMORY")
        .skippable();
  }
  auto executor = co_await asio::this_coro::executor;
  std::shared_ptr<waiter> mine;
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->waiting.empty() && state_->in_use + needed <= limit_) co_return take(size);
    mine = std::make_shared<waiter>(
        needed, asio::steady_timer(executor, steady_clock::time_point::max()), buffer{});
    state_->waiting.push_back(mine);
  }
  co_await mine->timer.async_wait(no_throw);
  {
    const std::scoped_lock lock(state_->mutex);
    if (!mine->given) std::erase(state_->waiting, mine);
  }
  if (!mine->given) co_return error(errc::stopped, "stopped while waiting for memory");
  co_return std::move(mine->given);
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
  return {};
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

std::size_t default_memory_bytes() {
  struct sysinfo info{};
  sysinfo(&info);
  auto total = static_cast<double>(info.totalram) * info.mem_unit;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (const auto limit = first_number(path)) total = std::min(total, *limit);
  }
  return std::min<std::size_t>(static_cast<std::size_t>(total / 4), 4_GiB);
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
