#include "train/files.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <random>
#include <span>

#include "engine/files/file_system.h"

namespace millrace {

std::string unique_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

error cannot_write(const std::string& what, const std::string& path, int why) {
  const char* remedy = "check that the folder is writable and has room";
  if (why == ENOENT) remedy = "create the folder first, or choose another path";
  if (why == ENOTDIR || why == EEXIST) remedy = "choose a path that does not lead through a file";
  return error(kind_of(why), "cannot write " + what).at(path).cause(why).hint(remedy);
}

void throw_failed_call(const std::string& file, const char* what, int why) {
  throw failure(error(kind_of(why), what)
                    .at(file)
                    .cause(why)
                    .hint("check that the folder is writable and has room"));
}

void sync_names_in(const std::string& folder) {
  if (const int why = sync_folder(folder); why != 0)
    throw_failed_call(folder, "cannot write", -why);
}

void write_file(const std::string& file, std::string_view content) {
  held_file out(host_files().open(file, O_WRONLY | O_CREAT | O_TRUNC, 0666));
  if (!out) throw_failed_call(file, "cannot write", -out.fd());
  int why = write_all(out.fd(), std::as_bytes(std::span(content)), 0);
  if (why == 0) why = host_files().sync(out.fd());
  if (const int closed = out.close(); why == 0) why = closed;
  if (why != 0) throw_failed_call(file, "cannot write", -why);
}

}  // namespace millrace
