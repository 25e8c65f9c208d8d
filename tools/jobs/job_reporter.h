#pragma once

#include <cstdint>
#include <functional>

namespace millrace {

class job_progress;

// The side of a job_progress that a tool writes to. Lives as long as the work. Any thread.
class job_reporter {
 public:
  // `to` may be null. `bytes`, where it is given, is asked for the bytes read so far, on any
  // thread, until the destructor keeps its last answer; what it refers to must outlive this.
  explicit job_reporter(job_progress* to, std::function<std::uint64_t()> bytes = nullptr);
  ~job_reporter();
  job_reporter(const job_reporter&) = delete;
  job_reporter& operator=(const job_reporter&) = delete;

  void add_bytes(std::uint64_t count);
  void add_shard();

 private:
  job_progress* to_;
};

}  // namespace millrace
