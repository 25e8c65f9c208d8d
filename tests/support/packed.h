#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <memory>
#include <string>

namespace millrace::testing {

// `content` compressed by one of libarchive's filters (ARCHIVE_FILTER_XZ, ...), with options such
// as "xz:compression-level=9". Empty if this build of libarchive cannot write that format.
inline std::string packed(const std::string& content, int filter, const std::string& options = "") {
  const auto freed = [](archive* a) { archive_write_free(a); };
  const std::unique_ptr<archive, decltype(freed)> out(archive_write_new(), freed);
  std::string made(content.size() + 100'000, '\0');
  std::size_t used = 0;
  if (archive_write_add_filter(out.get(), filter) != ARCHIVE_OK) return {};
  archive_write_set_format_raw(out.get());
  if (!options.empty() && archive_write_set_options(out.get(), options.c_str()) != ARCHIVE_OK) {
    return {};
  }
  archive_write_set_bytes_in_last_block(out.get(), 1);
  archive_write_open_memory(out.get(), made.data(), made.size(), &used);
  archive_entry* const entry = archive_entry_new();
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_write_header(out.get(), entry);
  archive_entry_free(entry);
  archive_write_data(out.get(), content.data(), content.size());
  archive_write_close(out.get());
  made.resize(used);
  return made;
}

}  // namespace millrace::testing
