#include "train/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>

#include "engine/error.h"

namespace millrace {

void throw_io_failed(const std::string& file, const char* what) {
  throw failure(error(errc::io_failed, what)
                    .at(file)
                    .cause(errno)
                    .hint("check that the folder may be written to and has room"));
}

std::string read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw failure(error(errc::not_found, "cannot read the file").at(file).cause(errno));
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

void sync_to_disk(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw_io_failed(path, "cannot open what was written");
  const int code = fsync(fd);
  const int why = errno;
  close(fd);
  errno = why;
  if (code != 0) throw_io_failed(path, "cannot write");
}

void write_file(const std::string& file, std::string_view content) {
  std::ofstream out(file, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) throw_io_failed(file, "cannot write");
  sync_to_disk(file);
}

}  // namespace millrace
