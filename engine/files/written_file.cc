#include "engine/files/written_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/process_wide.h"
#include "engine/files/file_system.h"
#include "engine/host/asked_to_end.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t buffered = std::size_t{1} << 20;
constexpr std::string_view infix = ".partial.";

[[noreturn]] void fail(const std::string& what, const std::string& path, int why) {
  error e(kind_of(why), what);
  e.at(path).cause(why);
  if (why == ENOENT) e.hint("create its folder first");
  if (why == ENXIO) e.hint("start the reader of this pipe first");
  if (why == ENOTDIR) e.hint("its folder's name belongs to a file: choose another name");
  if (why == EACCES || why == EPERM) e.hint("check the permissions of its folder");
  if (why == ENOSPC || why == EDQUOT) e.hint("free some disk space");
  if (why == EFBIG)
    e.hint("raise the limit on the size of files (ulimit -f), or write smaller ones");
  throw failure(std::move(e));
}

// The place of a file written to that path: a link's target, which need not exist yet, else the
// path itself.
std::string target_of(const std::string& path) {
  struct stat s{};
  if (host_files().stat(path, s, false) != 0 || !S_ISLNK(s.st_mode)) return path;
  if (host_files().stat(path, s) == 0) {
    const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                           &std::free);
    return real ? std::string(real.get()) : path;  // none: a pipe's, in /proc
  }
  constexpr int most_links = 40;  // as the kernel
  std::string target = path;
  for (int i = 0; i < most_links; ++i) {
    if (host_files().stat(target, s, false) != 0 || !S_ISLNK(s.st_mode)) return target;
    std::error_code failed;
    const fs::path next = fs::read_symlink(target, failed);
    if (failed) return path;
    target = (fs::path(target).parent_path() / next).string();
  }
  return path;
}

// Creates a locked partial file with a name that no other process uses.
int make_partial(const std::string& target, std::string& name) {
  file_system& files = host_files();
  for (int i = 0;; ++i) {
    name = fmt::format("{}{}{}", target, infix, getpid());
    if (i > 0) name += fmt::format("-{}", i);
    held_file made(files.open(name, O_WRONLY | O_CREAT | O_EXCL, 0666));
    if (made.fd() == -EEXIST) continue;
    if (!made) return made.fd();
    // Partial files are locked before removal: this one is gone if it was taken for a killed
    // process's just before this lock.
    const bool is_taken = files.lock_whole(made.fd()) == -EWOULDBLOCK;
    struct stat s{};
    if (!is_taken && files.stat(made.fd(), s) == 0 && s.st_nlink > 0) return made.release();
  }
}

// -EEXIST where the name is taken.
int give_new_name(const std::string& from, const std::string& to) {
  file_system& files = host_files();
  const int linked = files.link(from, to);
  if (linked == 0) {
    files.unlink(from);
    return 0;
  }
  if (linked == -EEXIST) return linked;
  struct stat s{};  // a file system without links
  return files.stat(to, s, false) == 0 ? -EEXIST : files.rename(from, to);
}

// The existing partial files of files written to these paths.
std::vector<std::string> partial_files_of(std::span<const std::string> paths) {
  std::map<fs::path, std::set<std::string>> names;  // by folder
  for (const std::string& path : paths) {
    const fs::path target = target_of(path);
    names[target.parent_path()].insert(target.filename());
  }
  std::vector<std::string> out;
  for (const auto& [folder, wanted] : names) {
    std::vector<std::string> here;
    host_files().list(folder.empty() ? "." : folder.string(), here);
    for (const std::string& name : here) {
      const bool is_one =
          is_partial_file_name(name) && wanted.contains(name.substr(0, name.rfind(infix)));
      if (is_one) out.push_back((folder / name).string());
    }
  }
  return out;
}

error written_meanwhile(std::string_view noun, const std::string& path) {
  return error(errc::usage, fmt::format("another run has written the {} in the meantime", noun))
      .at(path)
      .hint("choose another name");
}

// The suffix that make_partial() adds: a process, and which of its files.
bool is_of_process(std::string_view suffix) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  const auto dash = suffix.find('-');
  return is_number(suffix.substr(0, dash)) &&
         (dash == suffix.npos || is_number(suffix.substr(dash + 1)));
}

// The partial files of this process, by their names.
struct own_files {
  std::mutex mutex;
  std::set<std::string> names;
};

own_files& own() {
  return process_wide<own_files>();
}

}  // namespace

struct written_file::impl {
  std::string path;
  std::string target;
  std::string partial;  // empty: written in place
  std::string_view noun;
  held_file fd;
  std::vector<std::byte> pending;
  bool is_synced = false;
  bool is_broken = false;  // by a failed call: the file's bytes are unknown
  bool is_committed = false;
  pid_t process = getpid();

  // Throws unless new bytes would follow the previous ones.
  void check_goes_on() const {
    if (process != getpid()) {
      throw failure(
          error(errc::usage,
                fmt::format("the {} was begun before fork(), and is written by the parent "
                            "process alone",
                            noun))
              .at(path)
              .hint("write another one in the child"));
    }
    if (is_committed) {
      throw failure(error(errc::usage, fmt::format("the {} has been written, and is closed", noun))
                        .at(path)
                        .hint("write another one"));
    }
    if (!is_broken) return;
    throw failure(error(errc::usage, fmt::format("the {} could not be written before, and bytes of "
                                                 "it may be missing",
                                                 noun))
                      .at(path)
                      .hint("write it again"));
  }

  // Until the pipe takes some, or the program is asked to end: its reader may have stopped.
  void wait_for_room() const {
    constexpr int slice_ms = 100;
    pollfd room{.fd = fd.fd(), .events = POLLOUT, .revents = 0};
    while (poll(&room, 1, slice_ms) <= 0) {
      if (!asked_to_end) continue;
      throw failure(error(errc::stopped, fmt::format("stopped: the {} was not written whole", noun))
                        .at(path));
    }
  }

  // From when it has its name, or has none any more.
  void forget_partial() const {
    const std::scoped_lock lock(own().mutex);
    own().names.erase(partial);
  }

  void write_out(std::span<const std::byte> data) {
    is_broken = true;  // until all is written
    while (!data.empty()) {
      const ssize_t n = host_files().append(fd.fd(), data);
      if (n == -EINTR) continue;
      if (n == -EAGAIN) {  // a pipe is full: its reader says when it goes on
        wait_for_room();
        continue;
      }
      if (n < 0) fail(fmt::format("cannot write the {}", noun), path, static_cast<int>(-n));
      data = data.subspan(static_cast<std::size_t>(n));
    }
    is_broken = false;
  }
};

written_file::written_file(std::string path, std::string_view noun)
    : impl_(std::make_unique<impl>()) {
  impl& w = *impl_;
  w.path = std::move(path);
  w.noun = noun;
  check_is_path(w.path, noun);
  w.target = target_of(w.path);
  struct stat there{};
  const bool exists = host_files().stat(w.target, there) == 0;
  if (exists && S_ISDIR(there.st_mode)) {
    throw failure(error(errc::usage, fmt::format("the {} has the name of a folder", noun))
                      .at(w.path)
                      .hint("name a file"));
  }
  const bool in_place = exists && !S_ISREG(there.st_mode);
  // Not waiting for the reader of a pipe that has none.
  const int fd = in_place ? host_files().open(w.target, O_WRONLY | O_NONBLOCK)
                          : make_partial(w.target, w.partial);
  if (fd < 0) fail(fmt::format("cannot make the {}", noun), w.path, -fd);
  w.fd = held_file(fd);
  if (!in_place) {
    const std::scoped_lock lock(own().mutex);
    own().names.insert(w.partial);
  }
  if (exists && !in_place) host_files().set_mode(fd, there.st_mode & 0777);
}

written_file::~written_file() {
  if (!impl_->fd) return;
  impl_->fd.close();
  // In a forked child the file still belongs to the parent, which keeps writing it.
  if (impl_->partial.empty() || impl_->process != getpid()) return;
  host_files().unlink(impl_->partial);
  impl_->forget_partial();
}

void written_file::append(std::span<const std::byte> data) {
  impl& w = *impl_;
  w.check_goes_on();
  w.is_synced = false;
  if (w.pending.size() + data.size() > buffered) {
    w.write_out(w.pending);
    w.pending.clear();
  }
  if (data.size() >= buffered) return w.write_out(data);
  w.pending.insert(w.pending.end(), data.begin(), data.end());
}

std::int64_t written_file::flush() {
  impl& w = *impl_;
  w.check_goes_on();
  w.write_out(w.pending);
  w.pending.clear();
  struct stat now{};
  if (const int code = host_files().stat(w.fd.fd(), now); code != 0) {
    fail(fmt::format("cannot look at the {}", w.noun), w.path, -code);
  }
  return modified_ns(now);
}

void written_file::sync() {
  impl& w = *impl_;
  w.check_goes_on();
  w.write_out(w.pending);
  w.pending.clear();
  if (w.partial.empty() || w.is_synced) return;
  const int code = host_files().sync(w.fd.fd());
  w.is_broken = code < 0;  // the next call would succeed, without the bytes
  if (code < 0) fail(fmt::format("cannot write the {}", w.noun), w.path, -code);
  w.is_synced = true;
}

void written_file::commit(bool replaces) {
  impl& w = *impl_;
  sync();
  const auto check = [&](int code, std::string_view what) {
    if (code < 0) fail(fmt::format("cannot {} the {}", what, w.noun), w.path, -code);
  };
  if (w.partial.empty()) {
    w.is_committed = true;
    return check(w.fd.close(), "write");
  }
  // Named while it is locked: nobody takes it for a killed process's.
  const int code =
      replaces ? host_files().rename(w.partial, w.target) : give_new_name(w.partial, w.target);
  if (code == -EEXIST) {
    throw failure(written_meanwhile(w.noun, w.path));
  }
  if (code < 0) fail(fmt::format("cannot give the {} its name", w.noun), w.path, -code);
  w.is_committed = true;
  w.forget_partial();
  w.fd.close();
  check(sync_folder(fs::path(w.target).parent_path()), "write");
}

void written_file::commit_over(const std::optional<file_stamp>& before) {
  const impl& w = *impl_;
  const auto now = stamp_of_file(w.target);
  if (before && now && *now != *before) throw failure(written_meanwhile(w.noun, w.path));
  commit(before && now);
}

std::optional<file_stamp> stamp_of_file(const std::string& path) {
  struct stat s{};
  if (host_files().stat(path, s) != 0 || !S_ISREG(s.st_mode)) return std::nullopt;
  return file_stamp{s.st_dev, s.st_ino, static_cast<std::uint64_t>(s.st_size), modified_ns(s)};
}

void write_whole_file(const std::string& path, std::string_view text, std::string_view noun) {
  written_file out(path, noun);
  out.append(text);
  out.commit();
  remove_partial_files(std::array{path});
}

void remove_own_partial_files() {
  const std::scoped_lock lock(own().mutex);
  for (const std::string& name : own().names) host_files().unlink(name);
}

bool is_partial_file_name(std::string_view name) {
  const auto at = name.rfind(infix);
  return at != name.npos && is_of_process(name.substr(at + infix.size()));
}

void check_apart(std::span<const std::string> paths, std::string_view noun) {
  std::map<std::tuple<dev_t, ino_t, std::string>, std::string> seen;  // of a new file: its folder
  for (const std::string& path : paths) {
    const fs::path target = target_of(path);
    struct stat s{};
    std::tuple<dev_t, ino_t, std::string> where{0, 0, target};
    if (host_files().stat(target, s) == 0) {
      if (!S_ISREG(s.st_mode)) continue;
      where = {s.st_dev, s.st_ino, ""};
    } else if (host_files().stat(target.has_parent_path() ? target.parent_path() : ".", s) == 0) {
      where = {s.st_dev, s.st_ino, target.filename()};
    }
    const auto [other, is_first] = seen.emplace(std::move(where), path);
    if (is_first) continue;
    throw failure(error(errc::usage, fmt::format("two {}s would be one file, this and {}", noun,
                                                 printable(other->second)))
                      .at(path)
                      .hint("choose names that do not lead to one file"));
  }
}

void check_is_path(const std::string& path, std::string_view noun) {
  const auto begins_with = [&](std::string_view scheme) {
    return path.size() >= scheme.size() &&
           strncasecmp(path.data(), scheme.data(), scheme.size()) == 0;
  };
  if (path == "-") {
    throw failure(error(errc::usage, fmt::format("the {} has '-' as its name", noun))
                      .at(path)
                      .hint("name a file, or write ./- where that is meant"));
  }
  if (begins_with("file:")) {
    throw failure(
        error(errc::usage, fmt::format("the {} would have this as its name", noun))
            .at(path)
            .hint("name its path without 'file:', or write ./file:... where that is meant"));
  }
  if (begins_with("pipe:")) {
    throw failure(error(errc::usage, fmt::format("the {} cannot be written to a command", noun))
                      .at(path)
                      .hint("name a path of this host, such as /dev/stdout"));
  }
  if (path.find("://") == path.npos) return;
  throw failure(error(errc::usage, fmt::format("the {} cannot be written to a URL", noun))
                    .at(path)
                    .hint("name a path of this host, and copy it from there"));
}

void remove_partial_files(std::span<const std::string> paths) {
  for (const std::string& path : partial_files_of(paths)) {
    const held_file left(host_files().open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK));
    if (left && host_files().lock_whole(left.fd()) == 0) host_files().unlink(path);
  }
}

std::string written_place(const std::string& path) {
  return target_of(path);
}

std::optional<std::string> partial_of_another(std::span<const std::string> paths) {
  const auto is_living = [](const std::string& partial) {
    {
      const std::scoped_lock lock(own().mutex);
      const auto is_same = [path = fs::path(partial).lexically_normal()](const std::string& name) {
        return fs::path(name).lexically_normal() == path;
      };
      if (std::ranges::any_of(own().names, is_same)) return false;
    }
    const held_file there(host_files().open(partial, O_RDWR | O_NOFOLLOW | O_NONBLOCK));
    return there && host_files().lock_whole(there.fd()) == -EWOULDBLOCK;
  };
  const auto partials = partial_files_of(paths);
  const auto found = std::ranges::find_if(partials, is_living);
  return found == partials.end() ? std::nullopt : std::optional(*found);
}

void check_output(const std::string& path, const file_kind& kind,
                  std::span<const std::string> inputs) {
  struct stat there{};
  const int none = host_files().stat(path, there);
  if (none == -ENOENT || none == -ENOTDIR) return;
  if (none != 0) fail("cannot look at the file that would be replaced", path, -none);
  if (S_ISDIR(there.st_mode)) {
    throw failure(
        error(errc::usage, "the output has the name of a folder").at(path).hint("name a file"));
  }
  if (!S_ISREG(there.st_mode)) return;
  for (const std::string& input : inputs) {
    struct stat s{};
    if (host_files().stat(input, s) != 0) continue;
    if (s.st_dev != there.st_dev || s.st_ino != there.st_ino) continue;
    throw failure(error(errc::usage, "the output is one of the inputs")
                      .at(path)
                      .hint("choose another name for the output"));
  }
  std::array<char, 4096> head{};
  const held_file there_now(host_files().open(path, O_RDONLY));
  if (!there_now) fail("cannot read the file that would be replaced", path, -there_now.fd());
  const ssize_t n = read_all(there_now.fd(), std::as_writable_bytes(std::span(head)), 0);
  if (n == 0) return;
  if (n < 0) fail("cannot read the file that would be replaced", path, static_cast<int>(-n));
  if (kind.matches({head.data(), static_cast<std::size_t>(n)})) return;
  throw failure(error(errc::usage, fmt::format("the file that is there is not {}", kind.name))
                    .at(path)
                    .hint("choose another name for the output, or remove that file first"));
}

}  // namespace millrace
