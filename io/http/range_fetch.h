#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "io/http/policies.h"
#include "io/http/stack.h"
#include "io/http/transfer.h"
#include "io/source.h"

namespace millrace {

// Fetches one range of an object into buffers from its source's memory, in order. One I/O thread;
// spawn run() once, and meanwhile take the data from `ready`.
class range_fetch {
 public:
  // `reserved`: for a part that is fetched ahead of its turn; if empty, buffers are acquired one by
  // one.
  range_fetch(source_context context, std::shared_ptr<http_stack> stack, http_object object,
              byte_range range, object_version known, memory_reservation reserved, int priority,
              std::shared_ptr<fetch_signals> signals);

  static awaitable<void> run(std::shared_ptr<range_fetch> self);

  // Take from it only by take_ready(): data that was taken cannot be fetched again.
  std::deque<bytes> ready;
  bytes take_ready();
  // Drops `n` bytes at the front of the first ready piece, which has at least as many.
  void drop_ready(std::size_t n);
  std::uint64_t next_ready() const { return begin_ + taken_; }  // its place in the object
  void gave_out() {
    transfer_.gave_out();
    used_.clear();
  }
  bool ended = false;
  std::optional<error> failed;
  // The reader waits for this fetch's next byte: give out bytes as they arrive.
  bool is_awaited = false;

  bool begun() const { return begun_body_; }  // an answer with the object has arrived
  const http_transfer& transfer() const { return transfer_; }
  std::uint64_t received() const { return transfer_.offset() - begin_; }
  double seconds() const;  // since the first request
  void set_priority(int priority) { priority_ = priority; }
  void notify() { signals_->changed.notify_all(); }

 private:
  awaitable<http_transfer::action> attempt();
  awaitable<error> with_code(error why, http_exchange& exchange);
  awaitable<http_transfer::action> take_body(http_exchange& exchange);
  std::uint64_t bytes_to_come() const;
  awaitable<result<bool>> have_room(http_exchange* held);
  awaitable<result<buffer>> wait_for_room(http_exchange* held, std::size_t full, std::size_t size);
  awaitable<void> until_wanted(http_exchange* held);
  http_transfer::action set_aside();
  std::optional<http_transfer::action> take_piece(std::span<std::byte> piece);
  void give(bool all);
  http_transfer::action at_its_end();
  void throw_away();
  void count_buffer();
  awaitable<std::optional<http_transfer::action>> at_end(http_exchange& exchange);
  awaitable<result<http_request>> next_request();
  awaitable<bool> is_refused(const response_head& head);
  void on_object();
  http_transfer::action after_failure(const error& why);
  awaitable<void> pause(http_transfer::ask_again how);
  void tell(const error& why, std::chrono::milliseconds pause);
  void finish();

  source_context context_;
  std::shared_ptr<http_stack> stack_;
  http_origin& origin_;
  scoped_count under_way_;
  http_object object_;
  std::uint64_t begin_;
  std::uint64_t taken_ = 0;  // bytes of it that have been ready
  memory_reservation reserved_;
  std::vector<buffer> used_;  // of the reservation, while it may all have to be fetched again
  // The buffer being filled; the next request continues it if this one breaks.
  buffer filling_;
  std::size_t filled_ = 0;
  std::size_t given_ = 0;  // the part of it that the reader got
  int priority_;
  std::shared_ptr<fetch_signals> signals_;
  http_transfer transfer_;
  extent_ramp ramp_;
  time_source::time_point started_;
  time_source::time_point counted_;  // when the last buffer was full
  double first_byte_s_ = 0;
  bool begun_body_ = false;
  bool is_object_ = false;  // the current answer is the object's
  bool fresh_connection_ = false;
  bool is_set_aside_ = false;  // its connection was left to other requests
  bool refused_once_ = false;
  bool told_ = false;
};

}  // namespace millrace
