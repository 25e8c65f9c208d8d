#pragma once

#include <string>
#include <string_view>

#include "engine/error.h"
#include "engine/file_system.h"
#include "engine/result.h"

namespace millrace {

// A file to which lines are appended; processes may share it, and their lines do not mix. A line
// that a full disk or a kill broke off is ended, not joined by the next one. Each call is whole by
// itself, so several threads may append; add() waits for the reader of a pipe at most ten seconds.
class line_file {
 public:
  // `what` it is, for errors: "the list of keys". Throws `failure` where it cannot be written, also
  // where it is a pipe that nobody reads.
  line_file(std::string path, std::string what);

  // `line` ends in a newline. Fails with the kind of what the host says.
  result<void> add(std::string_view line) const;
  // What was added is on the disk.
  result<void> sync() const;

 private:
  error cannot_write(int code) const;
  void end_half_line() const;

  std::string path_;
  std::string what_;
  held_file file_;
};

}  // namespace millrace
