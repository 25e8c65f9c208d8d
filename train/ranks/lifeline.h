#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/host/clock.h"
#include "engine/host/job_place.h"

namespace millrace {

// Whether an address, as text, is one by which a host reaches itself alone, or empty.
bool is_of_itself(const std::string& address);

// Waits, as long as a host refuses connections to a port, for somebody to listen there. Returns for
// any other reason at once: who connects finds it.
void wait_while_refused(const std::string& host, int port, steady_clock::time_point until);

// A connection of each rank to rank 0, on which nothing is sent, so that a rank whose process has
// ended or whose host is gone is noticed by all others within 5 s, whatever they are doing: the
// system closes the connections of a process at once, and those to a host that answers no more
// after some seconds. A process that is stopped keeps its connections. Functions may be called from
// any thread.
class lifeline {
 public:
  // Called with the rank that is gone if this object still exists `patience` after that was
  // noticed, on a thread of its own: whatever the process is doing has not failed by itself.
  using end_process = std::function<void(int rank)>;
  static constexpr std::chrono::seconds patience{1};
  // The same after a rank that has ended by a failure of its own: the others usually have it too.
  static constexpr std::chrono::seconds patience_with_failed{30};

  // What rank 0 tells the others before they connect.
  struct place {
    int port = 0;
    std::string key;  // so that nobody else's connection is taken for a rank's
  };

  // On rank 0: listens until so many others have connected.
  lifeline(int others, end_process lost);
  // On another rank: connects to rank 0. Throws `failure` (peer_lost) if it cannot.
  lifeline(const job_place& own, const place& first, end_process lost);
  // Without end() the others take this rank for failed.
  ~lifeline();
  lifeline(const lifeline&) = delete;
  lifeline& operator=(const lifeline&) = delete;

  // Of rank 0.
  const place& at() const { return at_; }
  // This host's address as other ranks reach it: that of its connections, and not one by which a
  // host reaches itself alone, if there is another. On rank 0 waits until all others have
  // connected; empty if that takes longer than `time`.
  std::string address(std::chrono::milliseconds time);
  // This rank has come to the end of the job by itself, as the others will.
  void end();
  // While held, `lost` waits: for what must be finished, such as a checkpoint that is being
  // written.
  void hold(bool is_held);
  // The rank that is gone, if that is known now or within this time.
  std::optional<int> lost_within(std::chrono::milliseconds time);

 private:
  struct peer {
    int socket = -1;
    int rank = -1;     // -1: it has not said yet
    std::string said;  // as far as it has come
    bool has_failed = false;
  };

  void watch();
  int ms_until_end() const;
  void end_if_due();
  void accept_one();
  void close_when_all_have_come();
  bool hear(peer& from);
  void tell_lost(int rank, bool has_failed);
  void add_address(int socket);

  end_process lost_;
  bool is_first_;
  int others_ = 0;  // of rank 0
  place at_;
  int listening_ = -1;
  int wake_ = -1;  // an eventfd that ends the thread
  std::vector<peer> peers_;
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> is_held_ = false;
  std::optional<steady_clock::time_point> ends_at_;  // of the thread: when `lost` is due
  std::mutex mutex_;
  std::condition_variable known_;
  std::optional<int> gone_;             // guarded by mutex_
  std::vector<std::string> addresses_;  // of this host, by connection; guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace
