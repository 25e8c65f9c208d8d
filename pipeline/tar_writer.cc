// The one translation unit that includes libarchive.
#include "pipeline/tar_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace millrace {

struct tar_writer::impl {
  std::string path;
  std::string temporary;
  int fd = -1;
  archive* out = nullptr;
  archive_entry* entry = nullptr;

  [[noreturn]] void fail(const std::string& what, int why) const {
    const errc kind = why == EACCES || why == EPERM || why == EROFS ? errc::not_allowed
                      : why == ENOENT                               ? errc::not_found
                                                                    : errc::io_failed;
    throw failure(error(kind, what)
                      .at(path)
                      .cause(why)
                      .hint("check that the folder exists, may be written to, and has room"));
  }
  void check(int code) const {
    if (code < ARCHIVE_WARN) fail("cannot write the shard", archive_errno(out));
  }
};

tar_writer::tar_writer(std::string path) : impl_(std::make_unique<impl>()) {
  impl& w = *impl_;
  w.path = std::move(path);
  w.temporary = w.path + ".partial." + std::to_string(getpid());
  w.fd = open(w.temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (w.fd < 0) w.fail("cannot make the shard", errno);
  w.out = archive_write_new();
  w.entry = archive_entry_new();
  w.check(archive_write_set_format_pax_restricted(w.out));
  w.check(archive_write_add_filter_none(w.out));
  w.check(archive_write_open_fd(w.out, w.fd));
}

tar_writer::~tar_writer() {
  impl& w = *impl_;
  if (w.entry != nullptr) archive_entry_free(w.entry);
  if (w.out != nullptr) archive_write_free(w.out);
  if (w.fd >= 0) {
    ::close(w.fd);
    unlink(w.temporary.c_str());
  }
}

void tar_writer::add(const std::string& name, std::span<const std::byte> content) {
  impl& w = *impl_;
  archive_entry_clear(w.entry);
  archive_entry_set_pathname(w.entry, name.c_str());
  archive_entry_set_filetype(w.entry, AE_IFREG);
  archive_entry_set_perm(w.entry, 0444);
  archive_entry_set_uname(w.entry, "bigdata");
  archive_entry_set_gname(w.entry, "bigdata");
  archive_entry_set_mtime(w.entry, 0, 0);
  archive_entry_set_size(w.entry, static_cast<la_int64_t>(content.size()));
  w.check(archive_write_header(w.out, w.entry));
  const auto written = archive_write_data(w.out, content.data(), content.size());
  if (written != static_cast<la_ssize_t>(content.size())) {
    w.fail("cannot write the shard", archive_errno(w.out));
  }
}

void tar_writer::close() {
  impl& w = *impl_;
  w.check(archive_write_close(w.out));
  if (fsync(w.fd) != 0) w.fail("cannot write the shard", errno);
  ::close(std::exchange(w.fd, -1));
  if (std::rename(w.temporary.c_str(), w.path.c_str()) != 0) {
    const int why = errno;
    unlink(w.temporary.c_str());
    w.fail("cannot give the shard its name", why);
  }
}

}  // namespace millrace
