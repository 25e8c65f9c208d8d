#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "io/cache/cache_folder.h"
#include "io/disks/disk.h"
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
// block checked; else one reader of all processes fetches the object, and the others read what it
// has written so far. A fetching process that is stopped is bypassed. Where the cache fails (full,
// read-only), or its folder disappears a second time, reading continues from the origin, with one
// notice.
class object_cache : public std::enable_shared_from_this<object_cache> {
 public:
  object_cache(cache_options options, std::shared_ptr<disk_table> disks);

  // Whether the cache is on, and has not failed.
  bool usable() const { return !folder_.options().folder.empty() && !broken_; }
  std::unique_ptr<byte_source> open(source_context context, cache_origin from, byte_range range);

  const cache_folder& folder() const { return folder_; }
  const std::shared_ptr<disk_table>& disks() const { return disks_; }
  // What came of making its folder.
  void prepared(const result<void>& made);
  bool is_prepared() const { return prepared_; }
  // Call when the folder has disappeared: it is made again the first time.
  void lost();
  // Turns the cache off, telling why the first time.
  void fail(const error& why);
  // Gives a notice of this kind, the first time only.
  enum class notice { no_room, no_version, stopped_filler };
  void say_once(notice what, const std::string& text);

  // Whether the server of `url` did not answer a moment ago: what is in the cache is read without
  // asking it, so that each object does not wait for all attempts.
  bool is_away(const std::string& url) const;
  // Call where it could not be reached; gives a notice the first time in a row.
  void found_away(const std::string& url, const error& why);
  // Call where it answered.
  void found_back(const std::string& url);
  static constexpr std::chrono::seconds away_for{30};  // until it is asked again

 private:
  cache_folder folder_;
  std::shared_ptr<disk_table> disks_;
  bool prepared_ = false;
  bool made_again_ = false;
  bool broken_ = false;
  std::set<notice> said_;
  std::map<std::string, steady_clock::time_point> away_until_;  // by origin
};

// The memory of a source that reads through the cache: a block of an entry is checked as a whole,
// with the chunk that the consumer still has and those that the block is cut into.
source_memory with_cache(source_memory need, const source_options& options);
// Whether this is read through the cache: an object on a server, or a file that
// cache_options::paths names.
bool is_cached(const url& where, const cache_options& options);

// `plain` for files, but through the cache for those that cache_options::paths names: files of a
// server in the next room.
source_factory cached_files(std::shared_ptr<object_cache> cache, source_factory plain);

}  // namespace millrace
