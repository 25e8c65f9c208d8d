#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// A file of JSON lines. Each line is written whole or not at all, even when the disk is full or the
// process is killed. A failed write is reported once and counted, and writing is tried again with
// the next line. A pipe fails if its reader is gone or reads nothing for ten seconds. One thread.
class metrics_file {
 public:
  metrics_file() = default;
  ~metrics_file();
  metrics_file(const metrics_file&) = delete;
  metrics_file& operator=(const metrics_file&) = delete;

  // Throws `failure` by the cause: usage if another process has the file open as its metrics.
  // Appending first removes a half line that a kill may have left.
  void open(const std::string& path, bool append);
  // Whether lines are written.
  bool is_open() const { return file_ >= 0; }
  // Writes a line.
  void add(const std::string& line);
  // Throws `failure` (io_failed) if lines could not be written.
  void check_written() const;

 private:
  std::size_t write_some(std::string_view text) const;

  std::string path_;
  int file_ = -1;
  bool is_in_line_ = false;  // a pipe took only a part of the last line
  std::uint64_t unwritten_ = 0;
};

}  // namespace millrace
