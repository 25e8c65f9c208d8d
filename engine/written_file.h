#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

// A plain file as it is: where it lies, its size and when it was last changed.
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
// NAME.partial.PID in the same folder; commit() syncs it to the disk and renames it. A link keeps
// pointing at its target, which is replaced; devices and pipes, such as /dev/stdout, are written in
// place. Every function throws `failure` with the path, the kind by errno (not_found, not_allowed,
// io_failed) and the cause; after a write or a sync that failed, whose bytes may be missing, and
// after commit(), every call but the destructor throws (usage). One thread. In a forked child each
// call throws (usage) as well, and the destructor leaves the file to the parent.
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
  // Writes out what is held back, so that nothing but the name is missing. The time of the last
  // change to the bytes, in nanoseconds since 1970; it stays under the name.
  std::int64_t flush();
  // The same, and syncs it to the disk: what commit() does then needs no room.
  void sync();
  // `replaces`: a file of the name, if there is one. Else it is an error (usage) that there is one
  // by now, and stays.
  void commit(bool replaces = true);
  // The same where the name has what it had `before`, or nothing; else it is an error (usage), and
  // what is there, written by another run meanwhile, stays.
  void commit_over(const std::optional<file_stamp>& before);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

// The whole file in one call; partial files of killed processes are removed as well.
void write_whole_file(const std::string& path, std::string_view text,
                      std::string_view noun = "file");

// Where a file that is written to this path lies: at the target of a link, which need not be there
// yet, else at the path itself.
std::string written_place(const std::string& path);

// The partial file of one of `paths` that another living process, also of another host, is writing;
// nullopt: there is none.
std::optional<std::string> partial_of_another(std::span<const std::string> paths);

// Whether a file's name is that of a partial file, whoever writes it or wrote it: NAME.partial.PID.
// Pure.
bool is_partial_file_name(std::string_view name);

// Throws `failure` (usage) where two of `paths` lead to one file, links followed, whether it is
// there yet or not: one would replace the other. Devices and pipes may be named twice. `noun`: what
// is to be written there.
void check_apart(std::span<const std::string> paths, std::string_view noun);

// Throws `failure` (usage) for a URL, file: and pipe: among them, which would be taken for a path
// of that name. `noun`: what is to be written there.
void check_is_path(const std::string& path, std::string_view noun);

// Removes the partial files of `paths` that killed processes left. Those that a living process,
// also of another host, is writing are locked, and stay. Call it when a job is complete. Never
// throws for what cannot be removed.
void remove_partial_files(std::span<const std::string> paths);

// Removes the partial files that this process is writing, before it ends without destructors. Any
// thread; not from a signal handler.
void remove_own_partial_files();

// A kind of file that a command writes.
struct file_kind {
  std::string_view name;              // "a PNG"
  bool (*matches)(std::string_view);  // whether a file that begins with these bytes, at most
                                      // 4096, is one
};

// Throws `failure` (usage) unless a file of this kind may be written to `path`: nothing is there,
// or an empty file, a device or a pipe, or a file of the same kind that is none of `inputs` (local
// paths); no folder.
void check_output(const std::string& path, const file_kind& kind,
                  std::span<const std::string> inputs);

}  // namespace millrace
