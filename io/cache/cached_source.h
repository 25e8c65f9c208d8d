#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/cache/cache_folder.h"
#include "io/disk.h"
#include "io/source.h"

namespace millrace {

// Where an object comes from when the cache does not have it.
struct cache_origin {
  std::string url;
  // Its version and size, asked of the server. Without a size it is not cached.
  std::function<awaitable<result<object_version>>()> probe;
  // The object of that version, or whatever version there is where that is not known.
  std::function<awaitable<result<std::unique_ptr<byte_source>>>(source_context, byte_range,
                                                                object_version)>
      open;
};

// The cache of one I/O thread. Objects come from the folder where they are complete in it, each
// block checked; else one reader of all processes fetches the object while the others read behind
// it. Where the cache fails (full, read-only, lost), reading goes on from the origin, with one
// notice.
class object_cache : public std::enable_shared_from_this<object_cache> {
 public:
  object_cache(cache_options options, std::shared_ptr<disk_table> disks);

  // Whether the cache is on, and works.
  bool usable();
  std::unique_ptr<byte_source> open(source_context context, cache_origin from, byte_range range);

  const cache_folder& folder() const { return folder_; }
  const std::shared_ptr<disk_table>& disks() const { return disks_; }
  // Turns the cache off, telling why the first time.
  void fail(const error& why);

 private:
  cache_folder folder_;
  std::shared_ptr<disk_table> disks_;
  bool prepared_ = false;
  bool broken_ = false;
};

// `plain` for files, but through the cache for those that cache_options::paths names: files of a
// server in the next room.
source_factory cached_files(std::shared_ptr<object_cache> cache, source_factory plain);

}  // namespace millrace
