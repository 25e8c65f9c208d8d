#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "io/options.h"

namespace millrace {

// Whether `text` is the URL of an object store (known_stores.h) or of an HTTP server,
// rather than the path of a folder. Pure.
bool names_server(std::string_view text);

// Fails with usage if `text` would be taken for a path, but begins like such a URL (s3:/bucket).
// Pure.
result<void> check_has_two_slashes(std::string_view text);

// Fails with usage, naming what can be used instead, if millrace does not write to the server of
// this URL (names_server()). No I/O.
result<void> check_writable(const std::string& url);

// The objects of a store below a prefix, for files that a program keeps there. A call blocks, and
// does its work on the calling thread; each of its steps ends by http_options::timeouts and
// attempts. Any number of threads.
class stored_objects {
 public:
  // `prefix`: s3://BUCKET/PREFIX, with or without a '/' at its end. check_writable() it before.
  stored_objects(std::string prefix, const source_options& options);
  ~stored_objects();
  stored_objects(const stored_objects&) = delete;
  stored_objects& operator=(const stored_objects&) = delete;

  // While one of these lives, calls share their connections and credentials, one at a time. Other
  // calls make and find theirs again. This outlives it.
  class session {
   public:
    explicit session(const stored_objects& of);
    ~session();
    session(const session&) = delete;
    session& operator=(const session&) = delete;

   private:
    const stored_objects& of_;
  };

  // The prefix, without a '/' at its end.
  const std::string& prefix() const { return prefix_; }
  // "PREFIX/NAME"
  std::string url_of(const std::string& name) const { return prefix_ + "/" + name; }

  // The part after PREFIX/ of a URL, however its scheme and the '/' around names are written;
  // empty: it is of something else.
  std::string name_of(const std::string& text) const;

  // The objects below PREFIX/ whose names begin with `begin`, by name, with their bytes, which are
  // 0 where the store does not state them.
  result<std::map<std::string, std::uint64_t>> list(const std::string& begin) const;
  // The content of an object; nullopt: there is none. Fails with too_large beyond `most` bytes.
  result<std::optional<std::string>> get(const std::string& name, std::size_t most) const;

  enum class existing { replaced, refused };
  // Writes an object, as upload() does. `refused`: fails with `changed` if there is another one of
  // that name, where the store supports such a condition.
  result<void> put(const std::string& name, std::string_view content,
                   existing there = existing::replaced) const;
  // Deletes an object; a missing object is not an error.
  result<void> remove(const std::string& name) const;

 private:
  class reach;
  std::shared_ptr<reach> reached() const;

  std::string prefix_;
  source_options options_;
  mutable std::mutex mutex_;  // of what follows
  mutable int sessions_ = 0;
  mutable std::shared_ptr<reach> shared_;  // while there are sessions, from the first call
};

}  // namespace millrace
