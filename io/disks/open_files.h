#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/files/open_file.h"
#include "engine/threads/runtime.h"

namespace millrace {

// The open files of one I/O thread, within the descriptors that the process may have. When those
// run short, the least recently read file gives up its descriptor, and opens again when it is read
// next. The number of open shards is thus not bounded by `ulimit -n`.
//
// One I/O thread; opening itself happens in the pool, because it may block on a slow device.
class open_files {
 public:
  explicit open_files(const asio::any_io_executor& executor);

  awaitable<result<std::shared_ptr<open_file>>> open(runtime& threads, io_thread& io,
                                                     std::string path);
  // Opens the descriptor of `file` if needed, and keeps it open until let_go().
  awaitable<result<void>> hold(runtime& threads, io_thread& io, std::shared_ptr<open_file> file);
  // Adds a hold to a file that is held.
  void hold_again(const std::shared_ptr<open_file>& file);
  void let_go(const std::shared_ptr<open_file>& file);
  // Releases a hold: the file is no longer being read.
  void forget(const std::shared_ptr<open_file>& file);

 private:
  struct entry {
    std::shared_ptr<open_file> file;
    int holders = 0;
    bool opening = false;
  };
  using entry_list = std::list<entry>;
  class place;
  static bool is_idle(const entry& e);
  bool has_idle() const;
  bool close_least_recent();
  awaitable<void> next_change(condition& of);
  error failed(error why);
  awaitable<void> make_room();

  std::size_t limit_;
  std::size_t descriptors_ = 0;  // open, or being opened
  int held_ = 0;                 // files with holders
  entry_list entries_;           // the most recently read last
  std::unordered_map<const open_file*, entry_list::iterator> places_;
  condition room_;    // there are fewer descriptors than `limit_`, or a file can be closed
  condition let_go_;  // the same, for files to which the kernel has given none
};

}  // namespace millrace
