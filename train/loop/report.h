#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/host/clock.h"
#include "pipeline/plan/ledger.h"
#include "train/loop/metrics_file.h"

namespace millrace {

// One step's figures.
struct step_report {
  std::int64_t step = 0;               // of the run, from 1
  std::int64_t epoch = 0;              // from 0, as everywhere
  std::int64_t batch = 0;              // in the epoch
  std::int64_t epoch_batches = 0;      // in the whole epoch; 0: unknown
  std::int64_t steps_left = -1;        // of the run; -1: unknown
  std::int64_t samples = 0;            // of this rank, so far
  std::int64_t batch_size = 0;         // samples of this step, on this rank
  std::optional<double> loss;          // nullopt: it was not read
  double accuracy = 0;                 // read with the loss
  double lr = 0;                       // learning rate
  double seconds = 0;                  // of the whole step
  double waiting = 0;                  // part of `seconds` spent waiting for data
  std::vector<std::string> keys = {};  // of its samples, for the metrics; empty: left out
};

// Reports the progress of training on stderr: rank 0 writes a line at intervals,
//
//   rank 0 epoch 0 53/93 loss 2.103 (mean 2.690) acc 0.156 lr 0.01 1696 samples, 180 images/s (90 a
//   rank), 3 % waiting for data, 0:42 left
//
// (the loss since the last line, that of the last hundred steps, samples and waiting of this rank);
// on a terminal it redraws one line. It also writes JSON lines to a file. One thread.
class reporter {
 public:
  // The reporter of a rank in [0, world_size), with this many seconds between lines.
  reporter(int rank, int world_size, double log_every_s);

  // The file of JSON lines: `file` for rank 0, FILE.rankR for the others.
  static std::string metrics_of(const std::string& file, int rank);
  // Begins to write JSON lines, after those that the file has or in place of them. Throws
  // `failure` (io_failed).
  void write_metrics(const std::string& file, bool append) { metrics_.open(file, append); }

  // Whether the next step's loss will be read: reading it makes the host wait for the device.
  bool wants_loss() const;
  // Counts a step; prints it and adds it to the metrics if its loss was read.
  void step(const step_report& s);
  // Prints `text`, and adds `json_line` to the metrics. An empty one is left out.
  void note(const std::string& json_line, const std::string& text);
  // Prints each skipped sample that the counts list. `of`: "", or for example " in validation".
  void skipped(const ledger& counts, const std::string& of);
  // Throws `failure` (io_failed) if lines of metrics could not be written.
  void check_written() const { metrics_.check_written(); }

 private:
  std::string line(const step_report& s) const;
  void clear_progress();

  int rank_;
  int world_size_;
  double log_every_s_;
  bool terminal_;
  metrics_file metrics_;
  std::deque<double> losses_;  // the last hundred
  std::deque<double> accuracies_;
  steady_clock::time_point last_log_{};
  // Since the last line.
  double loss_sum_ = 0;
  std::int64_t losses_read_ = 0;
  double seconds_ = 0;
  double waiting_ = 0;
  std::int64_t images_ = 0;
  std::int64_t steps_ = 0;
  bool progress_shown_ = false;
};

// "1:02:03", "0:42"; for people.
std::string clock_time(double seconds);

}  // namespace millrace
