#pragma once

#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/result.h"
#include "engine/files/file_system.h"

namespace millrace {

// A file to which lines are appended. Processes may share it; their lines do not mix. A line cut
// short by a full disk or a kill is ended before the next one. Calls are atomic, so several threads
// may append; add() waits at most ten seconds for the reader of a pipe.
class line_file {
 public:
  // `what`: its name in errors, such as "the list of keys". Throws `failure` if it cannot be
  // written, or is a pipe that nobody reads.
  line_file(std::string path, std::string what);

  // `line` ends in a newline. Fails with the kind of the host's error.
  result<void> add(std::string_view line) const;
  // Syncs the added lines to disk.
  result<void> sync() const;

 private:
  error cannot_write(int code) const;
  void end_half_line() const;

  std::string path_;
  std::string what_;
  held_file file_;
};

}  // namespace millrace
