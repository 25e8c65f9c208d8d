#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/host/clock.h"

namespace millrace::cli {

// The total amount of work; zeros where it is not known.
struct amount_of_work {
  std::uint64_t bytes = 0;
  std::uint64_t items = 0;
  std::string_view noun = "shard";  // an item
  double seconds = 0;               // for work that takes a known time
};

// The amount of work done.
struct work_done {
  std::uint64_t bytes = 0;
  std::uint64_t items = 0;
};

// Shows the progress of a long command on stderr: on a terminal a line redrawn four times a second,
// elsewhere a line every half minute, nothing with MILLRACE_LOG=quiet:
//   digest: 34 %, 5 of 20 shards, 1.2 GiB, 412 MB/s, 8 s left
// Notices of the library clear the line first. One at a time.
class progress {
 public:
  // `look` returns the work done; it is called on this object's thread, until end().
  progress(std::string command, amount_of_work all, std::function<work_done()> look);
  // Clears the line.
  ~progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  // Ends it before the destructor does, so that the command can print its result.
  void end();

 private:
  void run(const std::stop_token& stopped);
  std::string line() const;

  std::string command_;
  amount_of_work all_;
  std::function<work_done()> look_;
  steady_clock::time_point begin_ = steady_clock::now();
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;
};

// Log lines are told in the words of the commands from now on, and apart from the line of progress,
// which is shown only if that is allowed.
void set_up_screen(bool shows_progress);

// Prints a line on stdout, erasing a progress line on the same terminal. Any thread.
void print_line(std::string_view line);

// The total size of local files; 0 if one of `urls` is something else or does not exist.
std::uint64_t bytes_of_files(const std::vector<std::string>& urls);

// "8 s", "3 min 20 s", "2 h 5 min".
std::string duration_text(double seconds);

}  // namespace millrace::cli
