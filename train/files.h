#pragma once

#include <string>
#include <string_view>

namespace millrace {

// Whole small files, for checkpoints. Throw `failure` that names the file. write_file has the bytes
// on disk (fsync) when it returns; it is not atomic: write under another name, then rename.
std::string read_file(const std::string& file);
void write_file(const std::string& file, std::string_view content);
// Has a file's or a folder's own data on disk.
void sync_to_disk(const std::string& path);
[[noreturn]] void throw_io_failed(const std::string& file, const char* what);

}  // namespace millrace
