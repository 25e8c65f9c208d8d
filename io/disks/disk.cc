#include "io/disks/disk.h"

#include <fmt/format.h>

#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"
#include "engine/threads/worker_pool.h"

namespace millrace {
namespace {

constexpr int most_depth = 128;

}  // namespace

storage with_overrides(storage found, const source_options& options) {
  if (options.spindles > 0) {
    found.rotational = true;
    found.spindles = options.spindles;
  }
  constexpr std::size_t usual_chunk = 512_KiB;
  if (found.spindles > 1 && found.chunk_bytes == 0) found.chunk_bytes = usual_chunk;
  return found;
}

int gate_permits(const storage& on, const source_options& options) {
  if (options.serialize) return *options.serialize;
  return on.rotational ? 1 : 0;
}

std::size_t affordable_extent(std::size_t share_bytes, std::size_t chunk_bytes) {
  return (share_bytes - std::min(share_bytes, 2 * chunk_bytes)) / 2;
}

std::optional<std::string> rate_lost(const storage& on, const source_options& options,
                                     std::size_t share_bytes, std::size_t shards,
                                     std::size_t budget_bytes) {
  if (gate_permits(on, options) == 0 || options.extent_bytes > 0) return std::nullopt;
  const disk_speed speed = usual_speed(on.spindles);
  const std::size_t extent = affordable_extent(share_bytes, options.chunk_bytes);
  if (speed.share_at(extent) >= expected_share) return std::nullopt;
  const std::size_t wanted = 2 * (speed.extent_for(expected_share) + options.chunk_bytes);
  const std::size_t enough = budget_bytes + shards * (wanted - share_bytes);
  return fmt::format(
      "the budget (engine_options.memory_bytes, MILLRACE_MEMORY) limits {} to {:.0f} % of its "
      "rate: {} open shards leave {} for each read; "
      "{}M, or fewer lanes, would reach {:.0f} %",
      on.identity, 100 * speed.share_at(extent), shards, format_bytes(extent),
      (enough + 1_MiB - 1) / 1_MiB, 100 * expected_share);
}

disk::disk(asio::any_io_executor executor, storage on, const source_options& options)
    : what(with_overrides(std::move(on), options)),
      extents(what, options.extent_bytes),
      depth(options.read_depth, most_depth),
      executor_(std::move(executor)) {
  const int permits = gate_permits(what, options);
  if (permits == 0) return;
  gate = std::make_shared<read_gate>(
      executor_, gate_options{.folder = options.gate_folder.empty() ? default_gate_folder()
                                                                    : options.gate_folder,
                              .identity = what.identity,
                              .permits = permits,
                              .patience = options.gate_patience});
}

awaitable<void> disk::begin_chunk() {
  if (waiting_.empty() && under_way_ < depth.depth()) {
    ++under_way_;
    co_return;
  }
  waiter mine(executor_);
  // However the wait ends, leaves the queue and returns a place that was not used.
  struct guard {
    disk& d;
    waiter& w;
    bool taken = false;
    ~guard() {
      std::erase(d.waiting_, &w);
      if (w.given && !taken) d.end_chunk();
    }
  } g{*this, mine};
  waiting_.push_back(&mine);
  while (!mine.given) co_await mine.woken.wait();
  g.taken = true;
}

void disk::end_chunk() {
  --under_way_;
  while (!waiting_.empty() && under_way_ < depth.depth()) {
    waiter* next = waiting_.front();
    waiting_.pop_front();
    next->given = true;
    ++under_way_;
    next->woken.notify_all();
  }
}

worker_pool& disk_table::cache_thread() {
  if (!cache_thread_) {
    cache_thread_ = std::make_unique<worker_pool>("mr-cache", 1, io_thread::max_tasks);
  }
  return *cache_thread_;
}

awaitable<std::shared_ptr<disk>> disk_table::of(runtime& threads, io_thread& io,
                                                const open_file& file) {
  if (const auto known = by_device_.find(file.device()); known != by_device_.end()) {
    co_return known->second;
  }
  const dev_t device = file.device();
  const auto found = co_await offload(io, threads.cpu(), [device, path = file.path()] {
    std::error_code none;
    const auto real = std::filesystem::canonical(path, none);
    return find_storage("/", device, none ? path : real.string());
  });
  auto& same = by_identity_[found.identity];
  if (!same) same = std::make_shared<disk>(executor_, found, options_);
  by_device_[device] = same;
  co_return same;
}

}  // namespace millrace
