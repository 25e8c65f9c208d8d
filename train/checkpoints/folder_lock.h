#pragma once

#include <string>

namespace millrace {

// Keeps other runs out of a folder while it lives, by a lock on a file that names the process. The
// system releases the lock when the process ends, however it ends; this object removes the file,
// but not an empty one that was there. On a file system without locks it has no effect.
class folder_lock {
 public:
  // Creates the folder if needed. Throws `failure`: usage if it is a file, io_failed if another
  // process holds the lock, which may be gone the next time, or if the file system refuses.
  explicit folder_lock(const std::string& folder);
  ~folder_lock();
  folder_lock(const folder_lock&) = delete;
  folder_lock& operator=(const folder_lock&) = delete;

  // Throws `failure` (io_failed) if the folder has been moved or removed since, or its lock.
  void check_is_there() const;

 private:
  bool is_there() const;
  bool try_lock(const std::string& folder);

  std::string path_;
  int file_ = -1;
  bool is_own_ = false;  // made by a run
};

}  // namespace millrace
