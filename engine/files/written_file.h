#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

// A plain file's identity, size and modification time.
struct file_stamp {
  std::uint64_t device = 0;
  std::uint64_t number = 0;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;
  friend bool operator==(const file_stamp&, const file_stamp&) = default;
};
// nullopt: no plain file is there.
std::optional<file_stamp> stamp_of_file(const std::string& path);

// A file that appears under its name when it is complete, or not at all. It is written as
// NAME.partial.PID in the same folder; commit() syncs it to disk and renames it. A link keeps
// pointing at its target, which is replaced; devices and pipes, such as /dev/stdout, are written in
// place. Every function throws `failure` with the path, the kind by errno (not_found, not_allowed,
// io_failed) and the cause; after a failed write or sync, whose bytes may be missing, and after
// commit(), every call except the destructor throws (usage). One thread. In a forked child every
// call throws (usage), and the destructor leaves the file to the parent.
class written_file {
 public:
  // `noun`: the word for it in errors ("shard"); must outlive the object.
  explicit written_file(std::string path, std::string_view noun = "file");
  // Removes the partial file unless it is committed.
  ~written_file();
  written_file(const written_file&) = delete;
  written_file& operator=(const written_file&) = delete;

  void append(std::span<const std::byte> data);
  void append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }
  // Writes out buffered bytes, so that only the name is missing. Returns the modification time in
  // nanoseconds since 1970, which the rename keeps.
  std::int64_t flush();
  // The same, and syncs to disk: commit() then needs no disk space.
  void sync();
  // `replaces`: whether it may replace a file of that name. If not, an existing one is kept, and is
  // an error (usage).
  void commit(bool replaces = true);
  // The same if the name still has the file it had `before`, or none; otherwise another run has
  // written a file there, which is kept, and it is an error (usage).
  void commit_over(const std::optional<file_stamp>& before);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// Writes a whole file in one call; also removes partial files of killed processes.
void write_whole_file(const std::string& path, std::string_view text,
                      std::string_view noun = "file");

// The place of a file written to this path: the target of a link, which need not exist yet, else
// the path itself.
std::string written_place(const std::string& path);

// The partial file of one of `paths` that another living process, also of another host, is writing;
// nullopt: there is none.
std::optional<std::string> partial_of_another(std::span<const std::string> paths);

// Whether a file's name is that of a partial file (NAME.partial.PID), of any process. Pure.
bool is_partial_file_name(std::string_view name);

// Throws `failure` (usage) if two of `paths` lead to one file, following links, whether or not it
// exists yet: one would replace the other. Devices and pipes may be named twice. `noun`: the word
// for the files in errors.
void check_apart(std::span<const std::string> paths, std::string_view noun);

// Throws `failure` (usage) for "-", and for a URL, including file: and pipe:, which would be taken
// for a path of that name. `noun`: the word for the file in errors.
void check_is_path(const std::string& path, std::string_view noun);

// Removes the partial files of `paths` that killed processes left. Those that a living process,
// even on another host, is writing are locked, and kept. Call it when a job is complete. Does not
// throw if a file cannot be removed.
void remove_partial_files(std::span<const std::string> paths);

// Removes the partial files that this process is writing; call it before exiting without
// destructors. Any thread; not from a signal handler.
void remove_own_partial_files();

// A kind of file that a command writes.
struct file_kind {
  std::string_view name;              // "a PNG"
  bool (*matches)(std::string_view);  // whether a file that begins with these bytes, at most
                                      // 4096, is one
};

// Throws `failure` (usage) unless a file of this kind may be written to `path`: there must be
// nothing, an empty file, a device or a pipe, or a file of the same kind that is not one of
// `inputs` (local paths); not a folder.
void check_output(const std::string& path, const file_kind& kind,
                  std::span<const std::string> inputs);

}  // namespace millrace
