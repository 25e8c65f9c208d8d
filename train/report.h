#pragma once

#include <cstdint>
#include <deque>
#include <fstream>
#include <string>

#include "engine/async.h"
#include "pipeline/ledger.h"

namespace millrace {

// One step's figures.
struct step_report {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t batch = 0;    // in the epoch
  std::int64_t samples = 0;  // of this rank, so far
  std::int64_t batch_size = 0;
  double loss = 0;
  double accuracy = 0;
  double lr = 0;
  double seconds = 0;  // of the whole step
  double waiting = 0;  // of them, for data
};

// Tells how training goes: a line now and then on stderr
// ("rank R epoch E/I loss L acc A steps ... images/s, waiting for data"), one that is written over
// on a terminal, and JSON lines in a file. One thread.
class reporter {
 public:
  reporter(int rank, double log_every_s, const std::string& metrics_file, bool append);
  // Whether the next step's loss will be looked at: reading it makes the host wait for the device.
  bool wants_loss() const;
  void step(const step_report& s);
  void note(const std::string& json_line, const std::string& text);

 private:
  std::string line(const step_report& s) const;
  void clear_progress();

  int rank_;
  double log_every_s_;
  bool terminal_;
  std::ofstream metrics_;
  std::deque<double> losses_;  // the last hundred
  std::deque<double> accuracies_;
  steady_clock::time_point last_log_{};
  double seconds_ = 0;  // since the last line
  double waiting_ = 0;
  std::int64_t images_ = 0;
  bool progress_shown_ = false;
};

}  // namespace millrace
