#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/files/file_system.h"

namespace millrace {

// A first-come first-served queue for `permits` places, shared by all processes of a host through
// one small file. All state is kernel locks on ranges of the file (open file description locks,
// fcntl(2)), so a participant that dies leaves nothing behind:
//
//   a place      one byte, locked by the participant that is in
//   a ticket     the byte at the nanosecond (CLOCK_MONOTONIC) when the participant queued
//
// A participant enters when no lower ticket is locked and a place is free. The file's content, the
// id of the process that entered last, is a hint for messages. Writing it also wakes the others,
// which watch the file by inotify (io/disks/read_gate.h).
//
// One object is one participant, in any process or thread. Not thread-safe.
class gate_file {
 public:
  // Opens <folder>/millrace-gate-<name>, and creates it with mode 0666 if it is missing. Never
  // follows a symbolic link. Refuses anything but a plain file, and a file that has a second name
  // and does not look like a gate.
  static result<std::unique_ptr<gate_file>> open(const std::string& folder, const std::string& name,
                                                 int permits);
  // Joins the end of the queue; does nothing if already queued.
  void queue();
  bool queued() const { return ticket_ != 0; }
  void leave_queue();
  // Takes a place and returns it if it is this participant's turn and one is free. It is then no
  // longer queued.
  std::optional<int> try_enter();
  void leave(int place);

  // Wakes all participants that watch the file.
  void announce() const { write_name(last_entered()); }

  // Whether no other participant is in or queued.
  bool idle() const;
  // Whether the file has lost its name: other participants then use another file.
  bool orphaned() const;
  // The process that entered last; 0: unknown.
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

// The folder in which all users of this host can meet: the first of /run/lock, /dev/shm and /tmp
// that all can write to.
std::string default_gate_folder();

}  // namespace millrace
