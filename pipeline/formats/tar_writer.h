#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/written_file.h"

namespace millrace {

// By what the bytes of an archive are known again.
struct archive_bytes {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  // crc32c()
  std::int64_t modified_ns = 0;
};

// Writes one shard: plain files in the ustar format (pax where a name or a size needs it), mode
// 0444, owner bigdata, time 0, so that equal content gives equal bytes: those that WebDataset's
// TarWriter gives with mtime=0. The file appears under its name when close() has succeeded, not
// before (engine/written_file.h). One thread.
//
// What would make another shard than was asked for throws `failure` (usage). A member that was
// begun and cannot be completed, because its producer failed, say, leaves no way to go on: the
// shard gets no name, and is written anew. So does a call that failed to write.
class tar_writer {
 public:
  // Throws `failure` (not_found, not_allowed, io_failed) when the file cannot be made.
  explicit tar_writer(std::string path);
  // Removes the partial file unless closed.
  ~tar_writer();
  tar_writer(const tar_writer&) = delete;
  tar_writer& operator=(const tar_writer&) = delete;

  // Throws `failure` (usage) for a name under which readers find no sample (empty, with a zero
  // byte, ending with '/', longer than 32 KiB, __x__ or below such a folder, without an extension
  // or a key before it), while a member is open, and after finish().
  void add(std::string_view name, std::span<const std::byte> content);
  void add(std::string_view name, std::string_view content) {
    add(name, std::as_bytes(std::span(content.data(), content.size())));
  }
  // The same in pieces: begin(), append() until there are `size` bytes, end(). append() throws
  // `failure` (usage) for more than these, end(), finish() and close() where some are missing.
  void begin(std::string_view name, std::uint64_t size);
  void append(std::span<const std::byte> content);
  void end();
  // What the file will be under its name. Nothing is added after it; called again, it says the
  // same.
  archive_bytes finish();
  // finish(), unless that has been called, and the name; `replaces` as written_file::commit().
  // Throws `failure` (usage) where the shard has been closed.
  void close(bool replaces = true);
  // The same by written_file::commit_over().
  void close_over(const std::optional<file_stamp>& before);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Throws `failure` (usage) unless a shard may be written to `path`: nothing is there or, with
// `overwrite`, a tar archive that is none of `inputs` (local paths).
void check_shard_output(const std::string& path, bool overwrite,
                        std::span<const std::string> inputs = {});

}  // namespace millrace
