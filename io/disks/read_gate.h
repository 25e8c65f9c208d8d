#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "io/disks/gate_file.h"

namespace millrace {

struct gate_options {
  std::string folder;    // where the processes of the host meet
  std::string identity;  // of the physical disks (io/disks/topology.h)
  int permits = 1;       // extents under way at once, of all processes
  // After this time without a participant coming or going, a waiter bypasses a blocked gate.
  steady_clock::duration patience = std::chrono::seconds(5);
};

class read_gate;

// The right to have one extent under way. It is given back by release() or the destructor, on the
// gate's I/O thread.
class gate_permit {
 public:
  gate_permit() = default;
  gate_permit(gate_permit&& other) noexcept { swap(other); }
  gate_permit& operator=(gate_permit&& other) noexcept {
    gate_permit(std::move(other)).swap(*this);
    return *this;
  }
  ~gate_permit() { release(); }

  void release();
  // Shows the waiters that this extent makes progress, however slowly.
  void keep_alive();
  // Whether others wanted the device when this was granted.
  bool contended() const { return contended_; }

 private:
  friend class read_gate;
  void swap(gate_permit& other) noexcept {
    std::swap(gate_, other.gate_);
    std::swap(meeting_, other.meeting_);
    std::swap(place_, other.place_);
    std::swap(contended_, other.contended_);
  }
  std::weak_ptr<read_gate> gate_;
  std::shared_ptr<gate_file> meeting_;  // null: no file could be opened
  int place_ = -1;
  bool contended_ = false;
};

// Lets the extents of one device's readers pass in turn: first come first served between the gates
// of all processes (and of all I/O threads of this one); within this gate, the reader that is
// nearest to starving is first. A waiting coroutine is suspended; no thread waits for it.
//
// A participant that was stopped (SIGSTOP) or hangs cannot hold up the others beyond
// `options.patience`: they log a notice and use another file until the first is deserted. No
// participant can hold up the others beyond ten times that: a gate that grants no turn for so long,
// whatever its activity, is bypassed for ten times as long, with a notice. While it is bypassed,
// and if no file can be opened, the gate covers this I/O thread alone.
//
// One I/O thread.
class read_gate : public std::enable_shared_from_this<read_gate> {
 public:
  read_gate(asio::any_io_executor executor, gate_options options);

  // `ready` returns the number of bytes that the reader has ahead of its consumer; it is called
  // while the caller waits.
  awaitable<gate_permit> enter(std::function<std::size_t()> ready);

 private:
  friend class gate_permit;
  struct waiter {
    explicit waiter(const asio::any_io_executor& executor) : woken(executor) {}
    std::function<std::size_t()> ready;
    condition woken;
    int passed_over = 0;
    bool waited = false;
    std::optional<gate_permit> given;
  };
  using waiter_list = std::list<std::shared_ptr<waiter>>;

  void open(int generation);
  void meet();
  void serve_waiters();
  void give(gate_permit permit);
  void left(const std::shared_ptr<gate_file>& meeting, int place);
  awaitable<void> watch(waiter& mine);
  void drain_events();
  void lose_patience();
  void go_apart();

  asio::any_io_executor executor_;
  gate_options options_;
  std::shared_ptr<gate_file> meeting_;
  int generation_ = 0;
  int inside_ = 0;  // permits of this gate in use
  bool told_ = false;
  waiter_list waiters_;
  bool watched_ = false;
  asio::posix::stream_descriptor events_;  // inotify; closed if it is refused
  int watch_ = -1;
  steady_clock::time_point last_motion_;  // seen, or the time when watching began
  steady_clock::time_point last_turn_;    // of this gate, or the time when one was first wanted
  steady_clock::time_point apart_until_;  // until then without a file
  int soon_ = 0;                          // remaining looks at short intervals
};

}  // namespace millrace
