#pragma once

#include <signal.h>

#include <atomic>
#include <optional>
#include <stop_token>
#include <thread>

#include "engine/host/clock.h"
#include "train/loop/control.h"

namespace millrace {

// Takes the signals of millrace-train on a thread of its own, for as long as it lives:
//
//   SIGINT, SIGTERM  end after the step under way, with a checkpoint; a second one ends at once,
//                    unless it is the same one within half a second, as `timeout` sends it
//   SIGUSR1          a checkpoint after the step under way; training goes on
//   SIGUSR2, SIGHUP  a checkpoint after the step under way, and the end; SIGHUP stays ignored where
//                    the parent ignores it (nohup)
//
// SIGPIPE is ignored from here on, in the whole process.
// Until training begins there is nothing to save: all but SIGUSR1 end the program at once. Exit
// codes are 128 + the signal's number. Made before any other thread, so that all of them leave
// these signals to it; they stay blocked after it, so that one that comes while the program ends
// does not change its exit code.
class signal_watch {
 public:
  signal_watch();
  ~signal_watch();
  signal_watch(const signal_watch&) = delete;
  signal_watch& operator=(const signal_watch&) = delete;

  // The requests that the trainer asks for. Refers to this object.
  train_control control();

 private:
  void watch();
  void take(int signal);

  sigset_t watched_{};
  int wake_ = -1;  // an eventfd that ends the thread
  std::stop_source stop_;
  std::atomic<int> ending_ = 0;  // the signal that ends the run; 0: none
  std::atomic<bool> save_ = false;
  std::atomic<bool> training_ = false;
  std::optional<steady_clock::time_point> asked_at_;  // by the first SIGINT or SIGTERM
  int asked_by_ = 0;                                  // which of them that was
  std::thread thread_;
};

}  // namespace millrace
