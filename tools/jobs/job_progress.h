#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace millrace {

// How far a long call has come, for a line of progress: make one, give its address to the call's
// options, and look at it from any thread, while the call runs and afterwards. It must outlive the
// call; one call at a time.
class job_progress {
 public:
  job_progress() = default;
  job_progress(const job_progress&) = delete;
  job_progress& operator=(const job_progress&) = delete;

  // Bytes of the shards read so far, or of the files packed; 0 for repack_shards(). Waits for the
  // engine's I/O thread: not for a function that runs there, such as a source.
  std::uint64_t bytes() const;
  // Shards that this call has completed; not those that it found.
  std::uint64_t shards() const { return shards_; }

 private:
  friend class job_reporter;

  mutable std::mutex mutex_;
  std::function<std::uint64_t()> look_;  // guarded by mutex_; null: bytes_
  std::atomic<std::uint64_t> bytes_ = 0;
  std::atomic<std::uint64_t> shards_ = 0;
};

}  // namespace millrace
