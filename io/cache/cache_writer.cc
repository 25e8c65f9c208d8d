#include "io/cache/cache_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "engine/files/file_system.h"
#include "io/hashes.h"

namespace millrace {
namespace {

// Follows the bytes of a file that are not the object's.
constexpr std::string_view refused_mark = "mrwrong1";

// The position of the block's sum, after the mark.
std::uint64_t place_of_sum(std::uint64_t block) {
  return cache_mark.size() + block * sizeof(std::uint32_t);
}

std::uint64_t size_of(int fd) {
  struct stat info{};
  return host_files().stat(fd, info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace

result<std::unique_ptr<cache_writer>> cache_writer::open(const std::string& path,
                                                         const std::string& url,
                                                         const object_version& version) {
  auto part = open_own(path + ".part", O_RDWR | O_CREAT);
  if (!part) return part.error();
  std::unique_ptr<cache_writer> w(new cache_writer);
  w->part_ = std::move(*part);
  w->path_ = path;
  w->url_ = url;
  w->version_ = version;
  if (version.digest) w->check_.emplace(*version.digest);
  if (!lock_file(w->part_.fd(), F_WRLCK)) return std::unique_ptr<cache_writer>();
  // Another writer may have completed or removed it before the lock was taken.
  if (!is_named(path + ".part", w->part_.fd())) return std::unique_ptr<cache_writer>();
  auto sums = open_own(path + ".sums", O_RDWR | O_CREAT);
  if (!sums) {
    w->give_up();
    return sums.error();
  }
  w->sums_file_ = std::move(*sums);
  w->keep_prefix();
  if (w->given_up_) return error(errc::io_failed, "cannot write to the cache").at(path);
  return w;
}

// Keeps what a writer that has died left: the complete blocks that match their sums. Bytes after
// them stay until they are overwritten: bytes that readers were given never change.
void cache_writer::keep_prefix() {
  const bool are_sums = begins_with_mark(sums_file_.fd());
  const std::uint64_t known =
      are_sums ? (size_of(sums_file_.fd()) - cache_mark.size()) / sizeof(std::uint32_t) : 0;
  const std::uint64_t blocks = std::min({size_of(part_.fd()) / cache_block_bytes, known,
                                         version_.total.value_or(0) / cache_block_bytes});
  std::vector<std::byte> block(blocks > 0 ? cache_block_bytes : 0);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    std::uint32_t expected = 0;
    if (!read_exactly(sums_file_.fd(), &expected, sizeof expected, place_of_sum(i))) break;
    if (!read_exactly(part_.fd(), block.data(), block.size(), i * cache_block_bytes)) break;
    if (crc32c(block) != expected) break;
    if (check_) check_->add(block);
    sums_.push_back(expected);
    size_ += cache_block_bytes;
    publish(size_);
  }
  const bool is_marked = are_sums || write_exactly(sums_file_.fd(), bytes_of(cache_mark), 0) == 0;
  if (!is_marked || host_files().truncate(sums_file_.fd(), place_of_sum(sums_.size())) != 0) {
    give_up();
  }
}

void cache_writer::publish(std::uint64_t bytes) {
  unlock_front(part_.fd(), bytes);
}

std::uint64_t cache_writer::size_on_disk() const {
  return size_of(part_.fd());
}

result<void> cache_writer::reserve(std::uint64_t bytes) {
  if (size_on_disk() >= bytes) return {};
  const int code = host_files().truncate(part_.fd(), bytes);
  if (code != 0) return failed(-code);
  return {};
}

void cache_writer::keep_alive() const {
  const std::array<timespec, 2> times = {
      {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = 0, .tv_nsec = UTIME_NOW}}};
  host_files().set_times(part_.fd(), times);
}

void cache_writer::give_up() {
  if (std::exchange(given_up_, true)) return;
  remove_name(path_ + ".part", part_.fd());
  if (sums_file_) remove_name(path_ + ".sums", sums_file_.fd());
}

void cache_writer::refuse() {
  if (given_up_) return;
  if (host_files().truncate(part_.fd(), size_) == 0) {
    write_exactly(part_.fd(), std::as_bytes(std::span(refused_mark)), size_);
  }
  give_up();
}

error cache_writer::failed(int why) {
  give_up();
  return error(kind_of(why), "cannot write to the cache").at(path_).cause(why);
}

result<void> cache_writer::end_block() {
  sums_.push_back(std::exchange(block_sum_, 0));
  const int why = write_exactly(sums_file_.fd(), bytes_of(std::array{sums_.back()}),
                                place_of_sum(sums_.size() - 1));
  if (why != 0) return failed(why);
  return {};
}

result<void> cache_writer::check(std::span<const std::byte> data) {
  if (!check_) return {};
  check_->add(data);
  if (size_ + data.size() < version_.total.value_or(0)) return {};
  auto right = check_->finish();
  check_.reset();
  if (!right) refuse();
  return right;
}

result<void> cache_writer::append(std::span<const std::byte> data) {
  if (auto right = check(data); !right) return right;
  while (!data.empty()) {
    const std::size_t room = cache_block_bytes - size_ % cache_block_bytes;
    const auto piece = data.first(std::min(room, data.size()));
    if (const int why = write_exactly(part_.fd(), piece, size_); why != 0) return failed(why);
    block_sum_ = crc32c(piece, block_sum_);
    size_ += piece.size();
    data = data.subspan(piece.size());
    if (piece.size() == room) {
      if (auto ended = end_block(); !ended) return ended;
    }
  }
  publish(size_);
  return {};
}

result<void> cache_writer::finish() {
  if (check_) return failed(EINVAL);  // the object is incomplete
  if (size_ % cache_block_bytes != 0) {
    if (auto ended = end_block(); !ended) return ended;
  }
  version_.total = size_;
  const std::string tail = cache_tail(sums_, url_, version_);
  if (const int why = write_exactly(part_.fd(), bytes_of(tail), size_); why != 0) {
    return failed(why);
  }
  // A writer that has died may have left more than that.
  file_system& files = host_files();
  int code = files.truncate(part_.fd(), size_ + tail.size());
  if (code == 0) code = files.sync(part_.fd());
  if (code != 0) return failed(-code);
  given_up_ = true;  // nothing is left to give up
  lost_ = !is_named(path_ + ".part", part_.fd());
  if (lost_) return {};
  // While it is locked: the writer of the next one creates its own sums.
  remove_name(path_ + ".sums", sums_file_.fd());
  if (code = files.rename(path_ + ".part", path_); code != 0) {
    lost_ = code == -ENOENT;
    if (lost_) return {};
    given_up_ = false;
    return failed(-code);
  }
  sync_folder(std::filesystem::path(path_).parent_path());  // every process then sees the name
  return {};
}

part_file::state part_file::look() const {
  state out;
  struct stat info{};
  // In this order: a part that is no longer filled keeps the name that it has.
  const auto locked = locked_from(fd());
  if (host_files().stat(fd(), info) != 0) return out;
  out.filling = locked.has_value();
  out.there = locked.value_or(0);
  out.named = info.st_nlink > 0;
  out.moved_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
  return out;
}

bool part_file::is_refused() const {
  const std::uint64_t size = size_of(fd());
  std::array<char, refused_mark.size()> mark{};
  return size >= mark.size() && read_exactly(fd(), mark.data(), mark.size(), size - mark.size()) &&
         std::string_view(mark.data(), mark.size()) == refused_mark;
}

std::unique_ptr<cached_file> part_file::completed() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd());
  held_file again(host_files().open(path, O_RDONLY));
  return again ? cached_file::of(std::move(again)) : nullptr;
}

}  // namespace millrace
