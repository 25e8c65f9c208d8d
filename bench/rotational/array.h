#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "bench/rotational/spindle.h"

namespace millrace::rotational {

// Spindles in real time: a thread for each serves its queue and waits until the modelled end of
// every part, by absolute times, so that a late wake-up does not add up.
class array {
 public:
  // `timeline`, if not null, gets one line per part: begin, end, spindle, position, size.
  array(int spindles, const disk_parameters& disk, scheduling order, std::FILE* timeline);
  ~array();
  // Ends the threads; later requests are never served. Idempotent.
  void stop();
  array(const array&) = delete;
  array& operator=(const array&) = delete;

  // Queues the pieces of one request, in order. `done` runs on a spindle's thread when the last of
  // them has been served.
  void submit(const std::vector<stripe::piece>& pieces, std::function<void()> done);

  // While hung nothing is served; requests wait.
  void set_hung(bool hung);

 private:
  struct arm;
  void serve(arm& a, int index);
  double now() const;

  std::FILE* timeline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct request {
    std::size_t parts;
    std::function<void()> done;
  };
  std::unordered_map<std::uint64_t, request> requests_;  // guarded by mutex_, like what follows
  std::uint64_t next_request_ = 0;
  bool hung_ = false;
  bool ending_ = false;
  std::vector<std::unique_ptr<arm>> arms_;
};

}  // namespace millrace::rotational
