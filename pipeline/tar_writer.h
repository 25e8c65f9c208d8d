#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/result.h"

namespace millrace {

// Writes one shard: plain files in the ustar format (pax where a name needs it), mode 0444, owner
// bigdata, time 0, so that equal content gives equal bytes. The file appears under its name when
// close() has succeeded, not before (temporary name, fsync, rename). One thread.
class tar_writer {
 public:
  // Throws `failure` (io_failed, not_allowed) when the file cannot be made.
  explicit tar_writer(std::string path);
  // Removes the temporary file unless closed.
  ~tar_writer();
  tar_writer(const tar_writer&) = delete;
  tar_writer& operator=(const tar_writer&) = delete;

  void add(const std::string& name, std::span<const std::byte> content);
  void add(const std::string& name, std::string_view content) {
    add(name, std::as_bytes(std::span(content.data(), content.size())));
  }
  void close();

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
