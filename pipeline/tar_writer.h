#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

// Writes one shard: plain files in the ustar format (pax where a name or a size needs it), mode
// 0444, owner bigdata, time 0, so that equal content gives equal bytes: those that WebDataset's
// TarWriter gives with mtime=0. The file appears under its name when close() has succeeded, not
// before (temporary name, fsync, rename). One thread.
class tar_writer {
 public:
  // Throws `failure` (io_failed, not_allowed) when the file cannot be made.
  explicit tar_writer(std::string path);
  // Removes the temporary file unless closed.
  ~tar_writer();
  tar_writer(const tar_writer&) = delete;
  tar_writer& operator=(const tar_writer&) = delete;

  void add(std::string_view name, std::span<const std::byte> content);
  void add(std::string_view name, std::string_view content) {
    add(name, std::as_bytes(std::span(content.data(), content.size())));
  }
  // The same in pieces: begin(), append() until there are `size` bytes, end().
  void begin(std::string_view name, std::uint64_t size);
  void append(std::span<const std::byte> content);
  void end();
  void close();

  // What a member takes in the archive, and an archive whose members take so much, in bytes.
  static std::uint64_t size_of_member(std::string_view name, std::uint64_t size);
  static std::uint64_t size_of_archive(std::uint64_t members);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
