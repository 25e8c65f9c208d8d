#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/file_system.h"
#include "engine/result.h"

namespace millrace {

// A first-come first-served queue for `permits` places, shared by all processes of a host through
// one small file. All state is kernel locks on ranges of the file (open file description locks,
// fcntl(2)), so a participant that dies leaves nothing behind:
//
//   a place      one byte, locked by whoever is in
//   a ticket     the byte at the nanosecond (CLOCK_MONOTONIC) when the participant queued
//
// A participant enters when no lower ticket is locked and a place is free. The file's content, the
// process id of the one who entered last, is a hint for messages; writing it is also what wakes the
// others, who watch the file by inotify (io/disks/read_gate.h).
//
// One object is one participant, whatever the process or thread. Not thread-safe.
class gate_file {
 public:
  // Opens <folder>/millrace-gate-<name>, made with mode 0666 where it is missing. Never follows a
  // symbolic link, and refuses what is not a plain file, or has a second name and content of its
  // own.
  static result<std::unique_ptr<gate_file>> open(const std::string& folder, const std::string& name,
                                                 int permits);
  // Joins the queue's end; does nothing when already queued.
  void queue();
  bool queued() const { return ticket_ != 0; }
  void leave_queue();
  // Takes a place when it is this participant's turn and one is free, and returns it. Ends its
  // queueing.
  std::optional<int> try_enter();
  void leave(int place);

  // Wakes everybody who watches the file.
  void announce() const { write_name(last_entered()); }

  // Nobody else is in or queued.
  bool idle() const;
  // The file has lost its name: other participants use another file by now.
  bool orphaned() const;
  // The process that entered last; 0 if unknown.
  pid_t last_entered() const;
  const std::string& path() const { return path_; }

 private:
  gate_file(held_file file, std::string path, int permits)
      : file_(std::move(file)), path_(std::move(path)), taken_(static_cast<std::size_t>(permits)) {}
  int lock(std::int64_t byte);  // 0 or -errno
  void unlock(std::int64_t byte);
  bool others_hold(std::int64_t from, std::int64_t count) const;
  void write_name(pid_t who) const;

  held_file file_;
  std::string path_;
  std::vector<bool> taken_;  // by this participant
  std::int64_t ticket_ = 0;
};

// The folder that all users of this host can meet in: /run/lock, /dev/shm or /tmp, the first that
// is writable to all.
std::string default_gate_folder();

}  // namespace millrace
