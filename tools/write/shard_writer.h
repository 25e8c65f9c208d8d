#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/samples/sample.h"

namespace millrace {

// A shard that a shard_writer has written.
struct written_shard {
  std::string path;                 // its name, by the pattern
  std::uint64_t samples = 0;        // in it
  std::uint64_t payload_bytes = 0;  // of the samples' files
  std::uint64_t bytes = 0;          // of the shard
};

// Options of a shard_writer.
struct shard_writer_options {
  // The names of the shards: "out/train-%06d.tar", or a brace range,
  // "out/train-{000000..000009}.tar", which names no more than these. The folder must exist.
  std::string pattern;
  std::int64_t most_count = 100'000;         // samples after which a shard ends, at least 1
  std::uint64_t most_bytes = 3'000'000'000;  // payload after which a shard ends, at least 1
  std::int64_t first_shard = 0;              // the number of the first shard, at least 0
  bool overwrite = false;                    // replaces shards that are there
  // Called with each shard when it has its name, on the thread of the writer; may be null. If it
  // throws, or closes the writer, the write() that ended the shard throws, and its sample is not
  // written.
  std::function<void(const written_shard&)> written = nullptr;
};

// A file of a sample, as it is given to a shard_writer. Refers to its arguments.
struct field_view {
  field_view(std::string_view of_extension, std::span<const std::byte> of_content)
      : extension(of_extension), content(of_content) {}
  // The same, of a text.
  field_view(std::string_view of_extension, std::string_view text)
      : field_view(of_extension, std::as_bytes(std::span(text.data(), text.size()))) {}
  // The same, of bytes as encoders give them.
  field_view(std::string_view of_extension, std::span<const std::uint8_t> of_content)
      : field_view(of_extension, std::as_bytes(of_content)) {}

  // Without the first dot: "jpg", "seg.png". Written in lower case, as readers give it.
  std::string_view extension;
  std::span<const std::byte> content;  // the whole file
};

// Writes samples into shards, as WebDataset's ShardWriter does: before a sample, a shard that has
// as many samples or as much payload as it may is ended, and the next one begun. A shard is the
// same for the same samples, byte by byte, and appears under its name when it is complete; a
// destroyed or killed writer leaves the shards that were complete. Without a sample there is no
// shard. One thread at a time; several writers, of different names, on any threads. Calls block
// while the disk writes, and need no memory of an engine. Example: examples/write_shards.cc.
//
// Errors are thrown as `failure`. A sample that is refused (usage) is not written, and the next one
// may be. If the next shard cannot be begun, the sample is not written, and close() completes the
// shard before it. After a shard could not be written (io_failed, not_allowed, ...) that shard is
// lost, and every further call throws the same.
class shard_writer {
 public:
  // Creates the first shard's file. Throws `failure`: usage for a wrong pattern or an option out of
  // range, if a shard of the pattern is there (unless `overwrite`), or if another process is
  // writing one of them; not_found, not_allowed, io_failed if the file cannot be created.
  explicit shard_writer(const shard_writer_options& options);
  // Removes the shard that is not complete: call close() first.
  ~shard_writer();
  shard_writer(const shard_writer&) = delete;
  shard_writer& operator=(const shard_writer&) = delete;

  // Writes the files KEY.EXTENSION of a sample, in this order; extensions in lower case, as readers
  // have them. Throws `failure` (usage) for what readers would not read as this sample: one without
  // a field, two fields of one extension, a key that is empty or whose file name has a dot, a key
  // equal to that of the sample before it in the shard, a name that is __x__ or below such a
  // folder, an extension that is empty or begins with a dot; for a key that leads out of the folder
  // where a shard is unpacked (/a, ../a); if the pattern has no further name; and after close().
  void write(std::string_view key, std::span<const field_view> fields);
  void write(std::string_view key, std::initializer_list<field_view> fields) {
    write(key, std::span(fields.begin(), fields.size()));
  }
  void write(const sample& s);

  // Completes the last shard. Returns all shards, in their order. Throws `failure` (usage) if,
  // with `overwrite`, shards of an older set would follow these: readers of a folder would take
  // them for a part of this set. All shards are complete then.
  const std::vector<written_shard>& close();
  // The shards that are complete, in their order. Valid until the next call of write() or close().
  const std::vector<written_shard>& shards() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
