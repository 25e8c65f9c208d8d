#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/files/written_file.h"

namespace millrace {

// Identifies the bytes of an archive.
struct archive_bytes {
  std::uint64_t size = 0;
  std::uint32_t crc = 0;  // crc32c()
  std::int64_t modified_ns = 0;
};

// Writes one shard: regular files in the ustar format (pax where a name or a size needs it), mode
// 0444, owner bigdata, time 0, so that equal content gives equal bytes: the same as WebDataset's
// TarWriter with mtime=0. The file appears under its name only once close() has succeeded
// (engine/files/written_file.h). One thread.
//
// Calls that would make a shard other than the one asked for throw `failure` (usage). A member that
// was begun but cannot be completed, for example because its producer failed, cannot be undone: the
// shard gets no name and must be written again. The same holds after a call that failed to write.
class tar_writer {
 public:
  // Throws `failure` (not_found, not_allowed, io_failed) if the file cannot be created.
  explicit tar_writer(std::string path);
  // Removes the partial file unless the shard was closed.
  ~tar_writer();
  tar_writer(const tar_writer&) = delete;
  tar_writer& operator=(const tar_writer&) = delete;

  // Throws `failure` (usage) for a name under which readers find no sample (empty, with a zero
  // byte, ending with '/', longer than 32 KiB, __x__ or below such a folder, without an extension
  // or without a key before it), while a member is open, and after finish().
  void add(std::string_view name, std::span<const std::byte> content);
  void add(std::string_view name, std::string_view content) {
    add(name, std::as_bytes(std::span(content.data(), content.size())));
  }
  // Throws what add() to this path would throw for the name and size of a member, and writes
  // nothing. Pure.
  static void check_member(const std::string& path, std::string_view name, std::uint64_t size);
  // Adds a member in pieces: begin(), append() until there are `size` bytes, end(). append() throws
  // `failure` (usage) for more bytes; end(), finish() and close() throw it while some are missing.
  void begin(std::string_view name, std::uint64_t size);
  void append(std::span<const std::byte> content);
  void end();
  // Ends the archive and returns the identity that the file will have. Nothing can be added after
  // it; later calls return the same.
  archive_bytes finish();
  // Calls finish() if that was not done, and gives the file its name; `replaces` as in
  // written_file::commit(). Throws `failure` (usage) if the shard was closed before.
  void close(bool replaces = true);
  // Like close(), through written_file::commit_over().
  void close_over(const std::optional<file_stamp>& before);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Throws `failure` (usage) unless a shard may be written to `path`: nothing exists there or, with
// `overwrite`, a tar archive that is not one of `inputs` (local paths).
void check_shard_output(const std::string& path, bool overwrite,
                        std::span<const std::string> inputs = {});

}  // namespace millrace
