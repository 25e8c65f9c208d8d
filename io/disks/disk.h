#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/threads/worker_pool.h"
#include "io/disks/depth_controller.h"
#include "io/disks/extent_policy.h"
#include "io/disks/open_files.h"
#include "io/disks/read_gate.h"
#include "io/disks/topology.h"
#include "io/source.h"

namespace millrace {

// The state that all reads of one device share, on one I/O thread.
class disk {
 public:
  disk(asio::any_io_executor executor, storage on, const source_options& options);

  storage what;
  std::shared_ptr<read_gate> gate;  // null: the device needs none
  extent_controller extents;        // of a gated device
  depth_controller depth;           // of the others

  // Waits, first come first served, until one more chunk may be under way.
  awaitable<void> begin_chunk();
  // The same without waiting, for the chunks of a turn.
  void begin_chunk_now() { ++under_way_; }
  void end_chunk();
  int under_way() const { return under_way_; }
  // Whether a coroutine waits in begin_chunk().
  bool crowded() const { return !waiting_.empty(); }

 private:
  struct waiter {
    explicit waiter(const asio::any_io_executor& executor) : woken(executor) {}
    condition woken;
    bool given = false;
  };
  asio::any_io_executor executor_;
  int under_way_ = 0;
  std::deque<waiter*> waiting_;
};

// The storage with the user's settings applied: MILLRACE_SPINDLES makes it rotational.
storage with_overrides(storage found, const source_options& options);
// The extent that `share_bytes` of memory for one open shard allow. They must hold two extents, one
// being read and one being consumed, and a chunk at each end.
std::size_t affordable_extent(std::size_t share_bytes, std::size_t chunk_bytes);
// Describes the cost of a small budget to the user; nullopt if `share_bytes` for each of `shards`
// open shards reach the usual part of the device's rate.
std::optional<std::string> rate_lost(const storage& on, const source_options& options,
                                     std::size_t share_bytes, std::size_t shards,
                                     std::size_t budget_bytes);
// The number of extents that the device's gate admits at once; 0: no gate.
int gate_permits(const storage& on, const source_options& options);

// The devices and open files of one I/O thread.
class disk_table {
 public:
  disk_table(asio::any_io_executor executor, const source_options& options)
      : files(executor), executor_(std::move(executor)), options_(options) {}

  // The device of an open file. It is looked up in the pool, once for each file system.
  awaitable<std::shared_ptr<disk>> of(runtime& threads, io_thread& io, const open_file& file);

  // The thread that asks the kernel to fill its cache. The pool's threads may be busy for long, and
  // a turn at a gate must not wait for them.
  worker_pool& cache_thread();

  open_files files;

 private:
  asio::any_io_executor executor_;
  source_options options_;
  std::map<dev_t, std::shared_ptr<disk>> by_device_;
  std::map<std::string, std::shared_ptr<disk>> by_identity_;
  std::unique_ptr<worker_pool> cache_thread_;  // created on first use
};

// An open file and its device.
struct readable_file {
  std::shared_ptr<disk_table> disks;
  std::shared_ptr<open_file> file;
  std::shared_ptr<disk> device;

  readable_file(std::shared_ptr<disk_table> table, std::shared_ptr<open_file> f)
      : disks(std::move(table)), file(std::move(f)) {}
  ~readable_file() { disks->files.forget(file); }
  readable_file(const readable_file&) = delete;
  readable_file& operator=(const readable_file&) = delete;
};

}  // namespace millrace
