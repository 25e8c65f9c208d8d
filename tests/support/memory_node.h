#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/memory_files.h"

namespace millrace::testing {

// A file or a folder: as processes see it, and as it is on the disk.
struct memory_files::node {
  struct write_op {
    std::uint64_t at;
    std::string bytes;
    bool cuts = false;  // truncation to `at`
  };
  struct held_lock {
    const descriptor* owner;
    bool exclusive;
    std::int64_t begin;
    std::int64_t end;
  };

  bool is_folder = false;
  ino_t inode = 0;
  nlink_t links = 0;
  std::int64_t changed_ns = 0;
  std::int64_t used_ns = 0;
  std::string content;
  std::string on_disk;
  std::vector<write_op> unsynced;
  // One change of names, atomic: a rename removes the old name.
  struct naming {
    std::string name;
    node_ptr what;     // null: the name is removed
    std::string old;   // in the same folder; empty: none
    node_ptr instead;  // gets the old name; null: nothing does
    // For a rename between two folders, which reaches the disk in both or in neither: which of
    // these, once that is decided.
    std::shared_ptr<std::optional<bool>> both = nullptr;
  };
  std::map<std::string, node_ptr> names;
  std::map<std::string, node_ptr> names_on_disk;
  std::vector<naming> unsynced_names;
  std::vector<held_lock> locks;                 // of ranges
  const descriptor* locked_whole_by = nullptr;  // independent of those, as flock(2) is

  static void apply(std::string& to, const write_op& op, std::size_t bytes) {
    if (op.cuts) return to.resize(op.at);
    if (to.size() < op.at + bytes) to.resize(op.at + bytes);
    std::copy_n(op.bytes.data(), bytes, to.data() + op.at);
  }
  static void apply(std::map<std::string, node_ptr>& to, const naming& op) {
    if (op.what) to[op.name] = op.what;
    if (!op.what) to.erase(op.name);
    if (!op.old.empty() && op.instead) to[op.old] = op.instead;
    if (!op.old.empty() && !op.instead) to.erase(op.old);
  }
  void sync() {
    on_disk = content;
    unsynced.clear();
    names_on_disk = names;
    for (const naming& op : unsynced_names) {
      if (op.both) *op.both = true;
    }
    unsynced_names.clear();
  }
};

struct memory_files::descriptor {
  node_ptr of;
  std::string path;
  int flags;
  int process;
};

}  // namespace millrace::testing
