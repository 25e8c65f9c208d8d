#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/result.h"
#include "io/options.h"

namespace millrace {

// Whether `text` is the URL of an object store (s3:, gs:, az:, ais:, hf:) or of an HTTP server,
// rather than the path of a folder. Pure.
bool names_server(std::string_view text);

// Fails with usage if `text` would be taken for a path, but begins like such a URL (s3:/bucket).
// Pure.
result<void> check_has_two_slashes(std::string_view text);

// Fails with usage, naming what can be used instead, if millrace does not write to the server of
// this URL (names_server()). No I/O.
result<void> check_writable(const std::string& url);

// The objects of a store below a prefix, for files that a program keeps there. Each call makes its
// connections and finds its credentials again, on the calling thread, and blocks; each of its steps
// ends by http_options::timeouts and attempts. Any number of threads.
class stored_objects {
 public:
  // `prefix`: s3://BUCKET/PREFIX, with or without a '/' at its end. check_writable() it before.
  stored_objects(std::string prefix, const source_options& options);

  // The prefix, without a '/' at its end.
  const std::string& prefix() const { return prefix_; }
  // "PREFIX/NAME"
  std::string url_of(const std::string& name) const { return prefix_ + "/" + name; }

  // The objects below PREFIX/, by what follows it, with their bytes, which are 0 where the store
  // does not state them.
  result<std::map<std::string, std::uint64_t>> list() const;

  enum class existing { replaced, refused };
  // Writes an object, as upload() does. `refused`: fails with `changed` if there is another one of
  // that name, where the store supports such a condition.
  result<void> put(const std::string& name, std::string_view content,
                   existing there = existing::replaced) const;
  // Deletes an object; it is no error if there is none.
  result<void> remove(const std::string& name) const;

 private:
  std::string prefix_;
  source_options options_;
};

}  // namespace millrace
