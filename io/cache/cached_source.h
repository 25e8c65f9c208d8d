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

// The origin of an object, for when the cache does not have it.
struct cache_origin {
  std::string url;
  // Asks the server for its version and size. An object of unknown size is not cached.
  std::function<awaitable<result<object_version>>()> probe;
  // Opens the object in that version, or in any version if it is unknown.
  std::function<awaitable<result<std::unique_ptr<byte_source>>>(source_context, byte_range,
                                                                object_version)>
      open;
};

// The cache of one I/O thread. An object that is complete in the folder is read from it, and each
// block checked. Otherwise one reader among all processes fetches the object, and the others read
// what it has written so far. If the fetching process is stopped, it is bypassed. If the cache
// fails (full, read-only), or its folder disappears a second time, reading continues from the
// origin, with one notice.
class object_cache : public std::enable_shared_from_this<object_cache> {
 public:
  object_cache(cache_options options, std::shared_ptr<disk_table> disks);

  // Whether the cache is on and has not failed.
  bool usable() const { return !folder_.options().folder.empty() && !broken_; }
  std::unique_ptr<byte_source> open(source_context context, cache_origin from, byte_range range);

  const cache_folder& folder() const { return folder_; }
  const std::shared_ptr<disk_table>& disks() const { return disks_; }
  // Records the result of creating the folder.
  void prepared(const result<void>& made);
  bool is_prepared() const { return prepared_; }
  // Call when the folder has disappeared: the first time, it is created again.
  void lost();
  // Turns the cache off, and logs the reason the first time.
  void fail(const error& why);
  // Logs a notice of this kind, the first time only.
  enum class notice { no_room, no_version, stopped_filler };
  void say_once(notice what, const std::string& text);

  // Whether the server of `url` did not answer a moment ago. Objects in the cache are then read
  // without asking it, so that they do not each wait for all attempts.
  bool is_away(const std::string& url) const;
  // Call when the server could not be reached; logs a notice the first time in a row.
  void found_away(const std::string& url, const error& why);
  // Call when the server answered.
  void found_back(const std::string& url);
  static constexpr std::chrono::seconds away_for{30};  // until the server is asked again

 private:
  cache_folder folder_;
  std::shared_ptr<disk_table> disks_;
  bool prepared_ = false;
  bool made_again_ = false;
  bool broken_ = false;
  std::set<notice> said_;
  std::map<std::string, steady_clock::time_point> away_until_;  // by origin
};

// The memory of a source that reads through the cache. A block of an entry is checked as a whole:
// there must be memory for the chunks that hold it, and for the chunk that the consumer still has.
source_memory with_cache(source_memory need, const source_options& options);
// Whether the URL is read through the cache: an object on a server, or a file that
// cache_options::paths names.
bool is_cached(const url& where, const cache_options& options);

// Opens files by `plain`, but through the cache if cache_options::paths names them: such as files
// of a network file system.
source_factory cached_files(std::shared_ptr<object_cache> cache, source_factory plain);

}  // namespace millrace
