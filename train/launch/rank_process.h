#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// A process of this program that is one rank of a job. Its lines on stderr appear on this process's
// own, each after "[RANK] "; its stdout is this one's, its stdin empty. It is in a process group of
// its own, so that signals of a terminal come to this process alone; it is asked to end (SIGTERM)
// when this process dies, however it dies. One thread.
class rank_process {
 public:
  // Runs the program again with these words of the command line, of which the first is its name,
  // and these variables in place of those of the same names. Throws `failure`.
  rank_process(int rank, const std::vector<std::string>& words,
               const std::vector<std::pair<std::string, std::string>>& variables);
  // Kills it if it has not ended.
  ~rank_process();
  rank_process(const rank_process&) = delete;
  rank_process& operator=(const rank_process&) = delete;

  int rank() const { return rank_; }
  // Whether all that can be known at the start was in order, so that it has begun to write, and
  // whether all is done and saved.
  bool has_begun() { return has_said('b'); }
  bool is_done() { return has_said('d'); }
  // Whether it has taken part in saving a checkpoint.
  bool has_saved() { return has_said('s'); }
  // To be polled for input: its stderr; -1: closed.
  int lines() const { return lines_; }
  // Passes on some of the lines that have come, as far as stderr takes them without waiting.
  void pass_lines();
  // Whether it has one that stderr has not taken yet.
  bool has_line() const;
  // Drops those that have come, and returns how many.
  std::uint64_t drop_lines();

  // Sends it a signal, unless it has ended.
  void signal(int number) const;
  // Looks whether it has ended; does not wait.
  void look();
  // Its status as from waitpid(2), if it had ended when look() was called last.
  std::optional<int> status() const { return status_; }

 private:
  bool has_said(char what);
  bool read_some();

  int rank_;
  pid_t pid_ = 0;
  std::optional<int> status_;
  int lines_ = -1;
  std::string line_;   // as far as it has come
  int progress_ = -1;  // a pipe, in which it says so
  std::string said_;
};

// Whether stderr takes a line without waiting for its reader.
bool stderr_takes_line();

// Called once, before other threads exist: sees to the end of such a process when its parent dies;
// ends it if that has died already. Returns whether this process is one.
bool is_started_rank();
// By such a process, on one thread: before it writes anything, when a checkpoint is saved, and when
// all is done. Only the first call of each counts.
void tell_writing_begins();
void tell_checkpoint_is_saved();
void tell_training_is_done();

}  // namespace millrace
