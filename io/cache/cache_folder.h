#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "io/cache/cache_writer.h"
#include "io/cache/cached_file.h"
#include "io/cache/entry_name.h"
#include "io/cache/options.h"

namespace millrace {

struct cache_entry {
  std::string name;
  std::string url;              // with secrets removed
  std::uint64_t bytes = 0;      // on disk, now or once it is complete
  std::uint64_t unwritten = 0;  // of those, as far as the disk shows
  std::int64_t used_ns = 0;     // last use, since 1970
  bool complete = false;
};

// A folder of fetched objects, shared by all processes of one user: no other user can read it or
// write to it. Files of other programs are neither used nor removed, whatever their names: only
// files with the cache's mark are removed. Each object is a file:
//
//   NAME.part     being filled, and already as long as it will be. The process that fills it holds
//                 a lock on it (an open file description lock, which ends with the process); the
//                 lock begins after the bytes that are verified, so readers follow it
//   NAME.sums     "mrcache1", and the CRC of each complete block of NAME.part
//   NAME          complete: the object, the CRC of each block of 1 MiB, a JSON text that describes
//                 it, the text's length, the CRC of everything after the object, "mrcache1"
//   URL.seen      the version of a URL that was seen last
//
// NAME is the sha256 of the object's URL and of what the server says about its version, so versions
// never mix. A file is renamed when it is complete and synced to disk. A crash leaves a NAME.part,
// whose blocks are reused if they match their sums. These calls block; run them in a pool.
// Thread-safe, as far as the kernel is.
class cache_folder {
 public:
  explicit cache_folder(cache_options options) : options_(std::move(options)) {}

  const cache_options& options() const { return options_; }
  // Fails for a name that the folder cannot have: with usage for that of a file, and with
  // bad_setting for a URL.
  result<void> check_name() const;
  // Creates the folder, with mode 0700, and checks it.
  result<void> prepare() const;
  // Fails with not_found, usage (not a folder), or not_allowed (another user's, or other users may
  // write to it).
  result<void> check() const;
  // The complete entry, marked as used; null if there is none or it is damaged. A damaged one is
  // removed if it has the cache's mark.
  std::unique_ptr<cached_file> open(const std::string& name) const;
  // The same without changing anything.
  std::unique_ptr<cached_file> look_at(const std::string& name) const;
  // Removes a file that has the mark of a complete entry but is not one. Returns whether it did.
  bool remove_damaged(const std::string& name) const;
  // Starts to fill an entry, and makes room for it; null if another process or reader fills it.
  // Fails with too_large, without removing anything, if there cannot be enough room; with not_found
  // if the folder is gone; and with io_failed if nothing can be written.
  result<std::unique_ptr<cache_writer>> fill(const std::string& name, const std::string& url,
                                             const object_version& version) const;
  // The part filled so far. Fails with not_found if there is none.
  result<std::unique_ptr<part_file>> open_part(const std::string& name) const;
  // Removes the entry, unless another file has replaced it.
  void remove(const std::string& name, const cached_file& file) const;

  // The entries, as far as their names show: files of other programs may be among them.
  std::vector<cache_entry> entries() const;
  // The files whose names are not the cache's, in byte order; no folders.
  std::vector<std::string> other_files() const;
  // Removes the least recently used entries, but no open ones, until the rest are within
  // `most_bytes` and `least_free`, if possible. Returns the bytes freed.
  std::uint64_t evict() const;
  // Removes all entries that no process reads or fills. Returns the bytes freed.
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
