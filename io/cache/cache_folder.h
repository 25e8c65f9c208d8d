#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/result.h"
#include "io/cache/cache_writer.h"
#include "io/cache/cached_file.h"
#include "io/cache/entry_name.h"
#include "io/cache/options.h"

namespace millrace {

struct cache_entry {
  std::string name;
  std::string url;              // without secrets
  std::uint64_t bytes = 0;      // it takes, or will when it is complete
  std::uint64_t unwritten = 0;  // of those, as far as the disk tells
  std::int64_t used_ns = 0;     // when it was used last, since 1970
  bool complete = false;
};

// A folder of fetched objects, shared by all processes of one user: nobody else can read it or
// write to it. Files of other programs are not used, and stay, whatever their names are: what is
// removed has the cache's mark. Each object is a file:
//
//   NAME.part     being filled, and as long as it will be: its first bytes, by the process that
//                 holds a lock on it (an open file description lock, which ends with the process);
//                 the lock begins after the bytes that are known to be right, so readers follow it
//   NAME.sums     "mrcache1", and the CRC of each block of NAME.part that is complete
//   NAME          filled: the object, the CRC of each block of 1 MiB, a JSON text that describes
//                 it, the text's length, the CRC of everything after the object, "mrcache1"
//   URL.seen      the last version of a URL that was seen
//
// NAME is the sha256 of the object's URL and of what the server says about its version, so that
// versions never meet. A file is renamed when it is complete and on the disk; a crash leaves a
// NAME.part, of which the blocks that fit their sums are used again. These calls block; run them in
// a pool. Thread-safe, as far as the kernel is.
class cache_folder {
 public:
  explicit cache_folder(cache_options options) : options_(std::move(options)) {}

  const cache_options& options() const { return options_; }
  // Makes the folder, with mode 0700, and checks it.
  result<void> prepare() const;
  // Fails with not_found, usage (no folder), not_allowed (another's, or one that others may write
  // to).
  result<void> check() const;
  // The complete entry, marked as used; null where there is none or where it is damaged (it is
  // removed, where it has the cache's mark).
  std::unique_ptr<cached_file> open(const std::string& name) const;
  // The same, changing nothing.
  std::unique_ptr<cached_file> look_at(const std::string& name) const;
  // Removes what has the mark of a complete entry and is none. Returns whether it did.
  bool remove_damaged(const std::string& name) const;
  // Null when another process or reader fills it. Makes room for it; fails with too_large where
  // there is none to be made, without removing anything, with not_found where the folder has gone,
  // and with io_failed where nothing can be written.
  result<std::unique_ptr<cache_writer>> fill(const std::string& name, const std::string& url,
                                             const object_version& version) const;
  // The part filled so far. Fails with not_found where there is nothing.
  result<std::unique_ptr<part_file>> open_part(const std::string& name) const;
  // Unless another has come in its place.
  void remove(const std::string& name, const cached_file& file) const;

  // By their names: there may be files of other programs among them.
  std::vector<cache_entry> entries() const;
  // The files of other names than the cache gives, in byte order; no folders.
  std::vector<std::string> other_files() const;
  // Removes the least recently used entries, but no open ones, until the rest are within
  // `most_bytes` and `least_free`, if possible. Returns the bytes freed.
  std::uint64_t evict() const;
  // Removes all entries that nobody reads or fills. Returns the bytes freed.
  std::uint64_t clean() const;

 private:
  std::string path_of(const std::string& name) const { return options_.folder + "/" + name; }
  std::string path_of(const cache_entry& e) const {
    return path_of(e.name) + (e.complete ? "" : ".part");
  }
  // The bytes to free before there is room for `more`, given these entries.
  std::uint64_t lacking(std::uint64_t more, const std::vector<cache_entry>& all) const;
  bool make_room(std::uint64_t more) const;
  bool has_mark(const cache_entry& entry, int fd) const;
  std::optional<held_file> unused(const cache_entry& entry) const;
  std::uint64_t remove_if_unused(const cache_entry& entry) const;
  std::uint64_t remove_leavings() const;
  error no_room_for(std::uint64_t bytes, const std::string& url) const;
  bool is_leaving(const std::string& file) const;

  cache_options options_;
};

}  // namespace millrace
