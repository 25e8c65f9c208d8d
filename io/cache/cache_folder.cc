#include "io/cache/cache_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "engine/base/units.h"
#include "engine/files/file_system.h"
#include "io/cache/seen_versions.h"

namespace millrace {
namespace {

struct disk_room {
  std::uint64_t size = 0;
  std::uint64_t free = 0;
};

std::optional<disk_room> room_of(const std::string& folder) {
  struct statvfs disk{};
  if (host_files().room(folder, disk) != 0) return std::nullopt;
  return disk_room{.size = std::uint64_t{disk.f_blocks} * disk.f_frsize,
                   .free = std::uint64_t{disk.f_bavail} * disk.f_frsize};
}

// Larger than any disk, and small enough that sums do not overflow.
constexpr std::uint64_t beyond_any_disk = std::uint64_t{1} << 60;

}  // namespace

result<void> cache_folder::check_name() const {
  const std::string& folder = options_.folder;
  if (folder.find("://") != folder.npos) {
    return error(errc::bad_setting, "cache_options.folder (MILLRACE_CACHE) is a URL")
        .hint("name a folder of this host");
  }
  struct stat info{};
  const int looked_up = host_files().stat(folder, info, true);
  if (looked_up == 0 ? S_ISDIR(info.st_mode) : looked_up != -ENOTDIR) return {};
  return error(errc::usage, "the cache (cache_options.folder, MILLRACE_CACHE) is not a folder")
      .at(folder)
      .hint("name a folder, or a path where there is nothing: it is created");
}

result<void> cache_folder::prepare() const {
  if (auto named = check_name(); !named) return named;
  const std::string& folder = options_.folder;
  for (auto slash = folder.find('/', 1); slash != std::string::npos;
       slash = folder.find('/', slash + 1)) {
    host_files().make_folder(folder.substr(0, slash), 0777);
  }
  const int made = host_files().make_folder(folder, 0700);
  if (made != 0 && made != -EEXIST) {
    return error(kind_of(-made), "cannot create the cache's folder").at(folder).cause(-made);
  }
  return check();
}

result<void> cache_folder::check() const {
  const std::string& folder = options_.folder;
  struct stat info{};
  if (const int none = host_files().stat(folder, info, false); none != 0) {
    return error(kind_of(-none), "cannot examine the cache's folder")
        .at(folder)
        .cause(-none)
        .hint("check cache_options.folder (MILLRACE_CACHE)");
  }
  if (!S_ISDIR(info.st_mode)) {
    return error(errc::usage, "the cache (cache_options.folder, MILLRACE_CACHE) is not a folder")
        .at(folder);
  }
  if (info.st_uid != geteuid()) {
    return error(errc::not_allowed, "the cache's folder belongs to another user")
        .at(folder)
        .hint("each user needs a cache of their own");
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return error(errc::not_allowed, "other users may write to the cache's folder")
        .at(folder)
        .hint("chmod go-w, or name a folder of your own");
  }
  return {};
}

std::unique_ptr<cached_file> cache_folder::open(const std::string& name) const {
  auto file = look_at(name);
  if (!file) remove_damaged(name);
  // The access time: the modification time would say that the content changed.
  const std::array<timespec, 2> times = {
      {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}}};
  if (file) host_files().set_times(file->fd(), times);
  return file;
}

std::unique_ptr<cached_file> cache_folder::look_at(const std::string& name) const {
  auto opened = open_own(path_of(name), O_RDONLY | O_NOATIME);
  return opened ? cached_file::of(std::move(*opened)) : nullptr;
}

bool cache_folder::remove_damaged(const std::string& name) const {
  auto opened = open_own(path_of(name), O_RDONLY | O_NOATIME);
  if (!opened || !ends_with_mark(opened->fd())) return false;
  const held_file same(host_files().duplicate(opened->fd()));
  if (!same || cached_file::of(std::move(*opened))) return false;
  remove_name(path_of(name), same.fd());
  return true;
}

void cache_folder::remove(const std::string& name, const cached_file& file) const {
  remove_name(path_of(name), file.fd());
}

result<std::unique_ptr<cache_writer>> cache_folder::fill(const std::string& name,
                                                         const std::string& url,
                                                         const object_version& version) const {
  const std::uint64_t total = std::min(version.total.value_or(0), beyond_any_disk);
  const std::uint64_t whole = total + cache_tail_bytes(url, version);
  auto writer = cache_writer::open(path_of(name), url, version);
  if (!writer || *writer == nullptr) return writer;
  const std::uint64_t more = whole - std::min(whole, (*writer)->size_on_disk());
  if (make_room(more)) {
    if (auto reserved = (*writer)->reserve(whole); !reserved) return reserved.error();
    // Other writers may have found the same room. The last one to reserve sees all reservations.
    if (make_room(0)) return writer;
  }
  (*writer)->give_up();
  return no_room_for(total, url);
}

error cache_folder::no_room_for(std::uint64_t bytes, const std::string& url) const {
  const std::string limit =
      options_.most_bytes == 0
          ? ""
          : fmt::format("cache_options.most_bytes (MILLRACE_CACHE_SIZE) is {}, ",
                        format_bytes(options_.most_bytes));
  const auto disk = room_of(options_.folder).value_or(disk_room{});
  return error(
             errc::too_large,
             fmt::format("the cache has no room for an object of {} ({}the disk of {} has {} "
                         "left, of which cache_options.least_free (MILLRACE_CACHE_FREE) keeps {})",
                         format_bytes(bytes), limit, format_bytes(disk.size),
                         format_bytes(disk.free), format_bytes(options_.least_free)))
      .at(redacted(url));
}

result<std::unique_ptr<part_file>> cache_folder::open_part(const std::string& name) const {
  auto file = open_own(path_of(name) + ".part", O_RDONLY);
  if (!file) return file.error();
  return std::make_unique<part_file>(std::move(*file));
}

std::vector<cache_entry> cache_folder::entries() const {
  std::vector<cache_entry> found;
  std::vector<std::string> names;
  host_files().list(options_.folder, names);
  for (const std::string& file : names) {
    const bool part = file.ends_with(".part");
    const std::string name = part ? file.substr(0, file.size() - 5) : file;
    struct stat info{};
    if (!is_cache_name(name) || host_files().stat(path_of(file), info, false) != 0) continue;
    const auto size = static_cast<std::uint64_t>(info.st_size);
    const auto written = static_cast<std::uint64_t>(info.st_blocks) * 512;
    const timespec& used = part ? info.st_mtim : info.st_atim;
    found.push_back({.name = name,
                     .url = "",
                     .bytes = size,
                     .unwritten = part ? size - std::min(size, written) : 0,
                     .used_ns = used.tv_sec * 1'000'000'000 + used.tv_nsec,
                     .complete = !part});
  }
  std::ranges::sort(found, {}, &cache_entry::used_ns);
  return found;
}

std::vector<std::string> cache_folder::other_files() const {
  std::vector<std::string> found;
  std::vector<std::string> names;
  host_files().list(options_.folder, names);
  for (const std::string& file : names) {
    const auto dot = std::min(file.find('.'), file.size());
    const std::string kind = file.substr(dot);
    const bool is_kind =
        kind.empty() || kind == ".part" || kind == ".sums" || kind.starts_with(".seen.");
    const bool is_own = is_cache_name(file.substr(0, dot)) &&
                        (is_kind || (kind == ".seen" && is_seen_version(path_of(file))));
    struct stat info{};
    if (is_own || host_files().stat(path_of(file), info, false) != 0) continue;
    if (!S_ISDIR(info.st_mode)) found.push_back(file);
  }
  std::ranges::sort(found);
  return found;
}

std::uint64_t cache_folder::lacking(std::uint64_t more, const std::vector<cache_entry>& all) const {
  more = std::min(more, beyond_any_disk);
  std::uint64_t most = 0;
  const auto beyond = [&](std::uint64_t wanted, std::uint64_t there) {
    most = std::max(most, wanted - std::min(wanted, there));
  };
  if (options_.most_bytes > 0) {
    std::uint64_t used = more;
    for (const cache_entry& e : all) used += e.bytes;
    beyond(used, options_.most_bytes);
  }
  for (const cache_entry& e : all) more += e.unwritten;
  // If the disk does not report its free space, writing will fail.
  if (const auto disk = room_of(options_.folder)) beyond(options_.least_free + more, disk->free);
  return most;
}

// Removes nothing if removing would not make enough room.
bool cache_folder::make_room(std::uint64_t more) const {
  const auto all = entries();
  const std::uint64_t wanted = lacking(more, all);
  std::vector<const cache_entry*> chosen;
  std::uint64_t sum = 0;
  for (auto e = all.begin(); e != all.end() && sum < wanted; ++e) {
    if (!unused(*e)) continue;
    chosen.push_back(&*e);
    sum += e->bytes;
  }
  if (sum < wanted) return false;
  std::uint64_t freed = 0;
  for (const cache_entry* e : chosen) freed += remove_if_unused(*e);
  return freed >= wanted || lacking(more, entries()) == 0;
}

std::uint64_t cache_folder::evict() const {
  const auto all = entries();
  const std::uint64_t wanted = lacking(0, all);
  std::uint64_t freed = 0;
  for (auto e = all.begin(); e != all.end() && freed < wanted; ++e) freed += remove_if_unused(*e);
  return freed;
}

// The mark of a part is in its sums until it is complete.
bool cache_folder::has_mark(const cache_entry& entry, int fd) const {
  if (ends_with_mark(fd)) return true;
  if (entry.complete) return false;
  const auto sums = open_own(path_of(entry.name) + ".sums", O_RDONLY);
  return sums && begins_with_mark(sums->fd());
}

// The entry's file, locked; nullopt if a process reads or fills it, or it belongs to another
// program.
std::optional<held_file> cache_folder::unused(const cache_entry& entry) const {
  auto file = open_own(path_of(entry), O_RDWR);
  const bool is_free = file && lock_file(file->fd(), F_WRLCK) && has_mark(entry, file->fd());
  return is_free ? std::optional(std::move(*file)) : std::nullopt;
}

std::uint64_t cache_folder::remove_if_unused(const cache_entry& entry) const {
  const std::string path = path_of(entry);
  auto file = unused(entry);
  if (!file || !is_named(path, file->fd())) return 0;  // another has removed it
  remove_name(path, file->fd());
  if (!entry.complete) {
    const std::string sums = entry.name + ".sums";
    if (is_leaving(sums)) host_files().unlink(path_of(sums));
  } else if (const auto whole = cached_file::of(std::move(*file));
             whole && !whole->seen().empty()) {
    forget_version(options_.folder, whole->seen(), entry.name);
  }
  return entry.bytes;
}

std::uint64_t cache_folder::clean() const {
  std::uint64_t freed = 0;
  for (const cache_entry& e : entries()) freed += remove_if_unused(e);
  return freed + remove_leavings();
}

// Whether the file is a version that was seen, the remains of one after a crash, or sums whose part
// is gone.
bool cache_folder::is_leaving(const std::string& file) const {
  const auto dot = std::min(file.find('.'), file.size());
  const std::string name = file.substr(0, dot);
  const std::string kind = file.substr(dot);
  if (!is_cache_name(name)) return false;
  if (kind == ".seen" || kind.starts_with(".seen.")) return is_seen_version(path_of(file));
  struct stat info{};
  if (kind != ".sums" || host_files().stat(path_of(name) + ".part", info) != -ENOENT) return false;
  const auto sums = open_own(path_of(file), O_RDONLY);
  return sums && begins_with_mark(sums->fd());
}

std::uint64_t cache_folder::remove_leavings() const {
  std::uint64_t freed = 0;
  struct stat info{};
  std::vector<std::string> names;
  host_files().list(options_.folder, names);
  for (const std::string& file : names) {
    if (!is_leaving(file)) continue;
    const bool sized = host_files().stat(path_of(file), info, false) == 0;
    if (host_files().unlink(path_of(file)) == 0 && sized) {
      freed += static_cast<std::uint64_t>(info.st_size);
    }
  }
  return freed;
}

}  // namespace millrace
