#include "io/cache/cache_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/hashes.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view magic = "mrcache1";
constexpr std::size_t tail_bytes = 16;  // length, CRC, magic
constexpr std::size_t name_length = 64;

bool lock(int fd, short kind) {
  struct flock whole{};
  whole.l_type = kind;
  whole.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &whole) == 0;
}

bool read_all(int fd, void* into, std::size_t size, std::uint64_t at) {
  auto* to = static_cast<std::byte*>(into);
  while (size > 0) {
    const ssize_t n = pread(fd, to, size, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    at += static_cast<std::uint64_t>(n);
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

template <class T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

bool is_signature(std::string_view name) {
  for (const std::string_view prefix : {"X-Amz-", "x-amz-", "X-Goog-", "x-goog-"}) {
    if (name.starts_with(prefix)) return true;
  }
  constexpr std::array<std::string_view, 18> known = {"sig",
                                                      "se",
                                                      "sp",
                                                      "sv",
                                                      "sr",
                                                      "st",
                                                      "spr",
                                                      "skoid",
                                                      "sktid",
                                                      "skt",
                                                      "ske",
                                                      "sks",
                                                      "Signature",
                                                      "Expires",
                                                      "AWSAccessKeyId",
                                                      "GoogleAccessId",
                                                      "Key-Pair-Id",
                                                      "Policy"};
  return std::ranges::find(known, name) != known.end();
}

std::string text_of(const object_version& v) {
  return fmt::format("{}\n{}\n{}", v.total.value_or(0), v.etag.value_or(""),
                     v.etag ? "" : v.last_modified.value_or(""));
}

bool is_name(const std::string& file) {
  return file.size() == name_length &&
         file.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

std::string canonical_url(const std::string& url) {
  auto where = parse_url(url);
  if (!where || where->host.empty()) return url;
  where->userinfo.clear();
  const auto question = where->path.find('?');
  if (question == std::string::npos) return to_string(*where);
  std::string kept;
  std::string_view query = std::string_view(where->path).substr(question + 1);
  while (!query.empty()) {
    const auto end = std::min(query.find('&'), query.size());
    const std::string_view one = query.substr(0, end);
    if (!is_signature(one.substr(0, one.find('=')))) {
      kept += (kept.empty() ? "?" : "&") + std::string(one);
    }
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  where->path.resize(question);
  return to_string(*where) + kept;
}

std::string cache_name(const std::string& url, const object_version& version) {
  return hex(digest_of(hash_algorithm::sha256, canonical_url(url) + "\n" + text_of(version)));
}

cached_file::~cached_file() {
  if (fd_ >= 0) close(fd_);
}

cache_writer::~cache_writer() {
  if (fd_ >= 0) close(fd_);
  if (sums_fd_ >= 0) close(sums_fd_);
}

void cache_writer::give_up() {
  if (std::exchange(given_up_, true)) return;
  unlink((path_ + ".part").c_str());
  unlink((path_ + ".sums").c_str());
}

error cache_writer::failed(int why) {
  give_up();
  return error(errc::io_failed, "cannot write to the cache").at(path_).cause(why);
}

result<void> cache_writer::write_all(int fd, std::span<const std::byte> data, std::uint64_t at) {
  while (!data.empty()) {
    const ssize_t n = pwrite(fd, data.data(), data.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(errno);
    data = data.subspan(static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
  return {};
}

result<void> cache_writer::end_block() {
  sums_.push_back(std::exchange(block_sum_, 0));
  return write_all(sums_fd_, bytes_of(std::array{sums_.back()}),
                   (sums_.size() - 1) * sizeof(std::uint32_t));
}

result<void> cache_writer::append(std::span<const std::byte> data) {
  while (!data.empty()) {
    const std::size_t room = cache_block_bytes - size_ % cache_block_bytes;
    const auto piece = data.first(std::min(room, data.size()));
    if (auto put = write_all(fd_, piece, size_); !put) return put;
    block_sum_ = crc32c(piece, block_sum_);
    size_ += piece.size();
    data = data.subspan(piece.size());
    if (piece.size() == room) {
      if (auto ended = end_block(); !ended) return ended;
    }
  }
  return {};
}

result<void> cache_writer::finish() {
  if (size_ % cache_block_bytes != 0) {
    if (auto ended = end_block(); !ended) return ended;
  }
  const nlohmann::json what{{"url", redacted(canonical_url(url_))},
                            {"bytes", size_},
                            {"etag", version_.etag.value_or("")},
                            {"last_modified", version_.last_modified.value_or("")}};
  const std::string text = what.dump();
  std::string tail(reinterpret_cast<const char*>(sums_.data()),
                   sums_.size() * sizeof(std::uint32_t));
  tail += text;
  const std::array numbers{static_cast<std::uint32_t>(text.size()), crc32c(bytes_of(tail))};
  tail.append(reinterpret_cast<const char*>(numbers.data()), sizeof numbers);
  tail += magic;
  if (auto put = write_all(fd_, bytes_of(tail), size_); !put) return put;
  if (fsync(fd_) != 0) return failed(errno);
  if (rename((path_ + ".part").c_str(), path_.c_str()) != 0) return failed(errno);
  unlink((path_ + ".sums").c_str());
  given_up_ = true;
  const int folder =
      ::open(fs::path(path_).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return {};
}

result<void> cache_folder::prepare() const {
  const std::string& folder = options_.folder;
  std::error_code failed;
  fs::create_directories(fs::path(folder).parent_path(), failed);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return error(errc::io_failed, "cannot make the cache's folder").at(folder).cause(errno);
  }
  struct stat info{};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return error(errc::usage, "MILLRACE_CACHE is not a folder").at(folder);
  }
  if (info.st_uid != geteuid()) {
    return error(errc::not_allowed, "the cache's folder belongs to another user").at(folder);
  }
  return {};
}

std::unique_ptr<cached_file> cache_folder::open(const std::string& name) const {
  auto file = look_at(name);
  if (file) futimens(file->fd_, nullptr);
  return file;
}

std::string cache_folder::url_of(const std::string& name) const {
  const auto file = look_at(name);
  return file ? file->url() : "";
}

std::unique_ptr<cached_file> cache_folder::look_at(const std::string& name) const {
  const std::string path = path_of(name);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return nullptr;
  std::unique_ptr<cached_file> file(new cached_file);
  file->fd_ = fd;
  file->path_ = path;
  lock(fd, F_RDLCK);
  struct stat info{};
  std::array<std::uint32_t, 2> numbers{};
  std::array<char, magic.size()> mark{};
  const auto damaged = [&]() -> std::unique_ptr<cached_file> {
    unlink(path.c_str());
    return nullptr;
  };
  if (fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(tail_bytes)) return damaged();
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (info.st_uid != geteuid() ||
      !read_all(fd, numbers.data(), sizeof numbers, size - tail_bytes) ||
      !read_all(fd, mark.data(), mark.size(), size - mark.size()) ||
      std::string_view(mark.data(), mark.size()) != magic || numbers[0] + tail_bytes > size) {
    return damaged();
  }
  std::string text(numbers[0], '\0');
  if (!read_all(fd, text.data(), text.size(), size - tail_bytes - text.size())) return damaged();
  const auto what = nlohmann::json::parse(text, nullptr, false);
  if (!what.is_object() || !what.contains("bytes")) return damaged();
  file->bytes_ = what.value("bytes", std::uint64_t{0});
  file->url_ = what.value("url", "");
  const std::uint64_t blocks = (file->bytes_ + cache_block_bytes - 1) / cache_block_bytes;
  if (file->bytes_ + blocks * sizeof(std::uint32_t) + text.size() + tail_bytes != size)
    return damaged();
  file->sums_.resize(blocks);
  if (!read_all(fd, file->sums_.data(), blocks * sizeof(std::uint32_t), file->bytes_))
    return damaged();
  const std::uint32_t sum = crc32c(bytes_of(text), crc32c(bytes_of(file->sums_)));
  if (sum != numbers[1]) return damaged();
  return file;
}

// What a writer that has died left: the whole blocks that are as they were written.
void cache_folder::keep_prefix(cache_writer& w) const {
  struct stat info{};
  struct stat sums{};
  fstat(w.fd_, &info);
  fstat(w.sums_fd_, &sums);
  const std::uint64_t blocks =
      std::min<std::uint64_t>(static_cast<std::uint64_t>(info.st_size) / cache_block_bytes,
                              static_cast<std::uint64_t>(sums.st_size) / sizeof(std::uint32_t));
  std::vector<std::byte> block(blocks > 0 ? cache_block_bytes : 0);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    std::uint32_t expected = 0;
    if (!read_all(w.sums_fd_, &expected, sizeof expected, i * sizeof expected)) break;
    if (!read_all(w.fd_, block.data(), block.size(), i * cache_block_bytes)) break;
    if (crc32c(block) != expected) break;
    w.sums_.push_back(expected);
  }
  w.size_ = w.sums_.size() * cache_block_bytes;
  if (w.version_.total && w.size_ > *w.version_.total) {
    w.sums_.clear();
    w.size_ = 0;
  }
  if (ftruncate(w.fd_, static_cast<off_t>(w.size_)) != 0) w.give_up();
  if (ftruncate(w.sums_fd_, static_cast<off_t>(w.sums_.size() * sizeof(std::uint32_t))) != 0) {
    w.give_up();
  }
}

result<std::unique_ptr<cache_writer>> cache_folder::fill(const std::string& name,
                                                         const std::string& url,
                                                         const object_version& version) const {
  std::unique_ptr<cache_writer> w(new cache_writer);
  w->path_ = path_of(name);
  w->url_ = url;
  w->version_ = version;
  const std::string part = w->path_ + ".part";
  constexpr int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  w->fd_ = ::open(part.c_str(), flags, 0600);
  if (w->fd_ < 0) {
    w->given_up_ = true;
    return error(errc::io_failed, "cannot write to the cache").at(options_.folder).cause(errno);
  }
  if (!lock(w->fd_, F_WRLCK)) return std::unique_ptr<cache_writer>();
  // Between the opening and the lock another may have completed or removed it.
  struct stat ours{};
  struct stat named{};
  const bool same =
      fstat(w->fd_, &ours) == 0 && ::stat(part.c_str(), &named) == 0 && ours.st_ino == named.st_ino;
  if (!same) return std::unique_ptr<cache_writer>();
  w->sums_fd_ = ::open((w->path_ + ".sums").c_str(), flags, 0600);
  if (w->sums_fd_ < 0) return w->failed(errno);
  keep_prefix(*w);
  if (w->given_up_) return error(errc::io_failed, "cannot write to the cache").at(w->path_);
  const std::uint64_t more = version.total.value_or(0) - w->size_;
  if (options_.most_bytes == 0 || version.total.value_or(0) <= options_.most_bytes) evict(more);
  if (!has_room(more)) {
    w->give_up();
    return error(errc::too_large, "the cache has no room for the object").at(redacted(url));
  }
  return w;
}

int cache_folder::open_part(const std::string& name) const {
  return ::open((path_of(name) + ".part").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

void cache_folder::remove(const std::string& name) const {
  unlink(path_of(name).c_str());
}

void cache_folder::remember(const std::string& url, const object_version& version) const {
  const std::string path =
      path_of(hex(digest_of(hash_algorithm::sha256, canonical_url(url))) + ".seen");
  const nlohmann::json what{{"bytes", version.total.value_or(0)},
                            {"etag", version.etag.value_or("")},
                            {"last_modified", version.last_modified.value_or("")}};
  const std::string text = what.dump();
  std::ifstream before(path);
  if (std::string old; std::getline(before, old) && old == text) return;
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  {
    std::ofstream out(temporary);
    out << text;
    if (!out.flush()) return;  // it only serves when the server is away
  }
  ::rename(temporary.c_str(), path.c_str());
}

std::optional<object_version> cache_folder::remembered(const std::string& url) const {
  std::ifstream in(path_of(hex(digest_of(hash_algorithm::sha256, canonical_url(url))) + ".seen"));
  const auto what = nlohmann::json::parse(in, nullptr, false);
  if (!what.is_object()) return std::nullopt;
  object_version v{.total = what.value("bytes", std::uint64_t{0}), .etag = {}, .last_modified = {}};
  if (const std::string etag = what.value("etag", ""); !etag.empty()) v.etag = etag;
  if (const std::string at = what.value("last_modified", ""); !at.empty()) v.last_modified = at;
  return v;
}

std::vector<cache_entry> cache_folder::entries() const {
  std::vector<cache_entry> found;
  std::error_code failed;
  for (const auto& item : fs::directory_iterator(options_.folder, failed)) {
    std::string file = item.path().filename();
    const bool part = file.ends_with(".part");
    const std::string name = part ? file.substr(0, file.size() - 5) : file;
    struct stat info{};
    if (!is_name(name) || ::stat(item.path().c_str(), &info) != 0) continue;
    found.push_back({.name = name,
                     .url = "",
                     .bytes = static_cast<std::uint64_t>(info.st_size),
                     .used_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec,
                     .complete = !part});
  }
  std::ranges::sort(found, {}, &cache_entry::used_ns);
  return found;
}

bool cache_folder::remove_if_unused(const cache_entry& entry) const {
  const std::string path = path_of(entry.name) + (entry.complete ? "" : ".part");
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool unused = lock(fd, F_WRLCK);  // nobody reads or fills it
  if (unused) unlink(path.c_str());
  if (unused && !entry.complete) unlink((path_of(entry.name) + ".sums").c_str());
  close(fd);
  return unused;
}

std::uint64_t cache_folder::clean() const {
  std::uint64_t freed = 0;
  for (const cache_entry& e : entries()) freed += remove_if_unused(e) ? e.bytes : 0;
  return freed;
}

bool cache_folder::has_room(std::uint64_t more) const {
  if (options_.most_bytes > 0) {
    std::uint64_t used = more;
    for (const cache_entry& e : entries()) used += e.bytes;
    if (used > options_.most_bytes) return false;
  }
  struct statvfs disk{};
  if (statvfs(options_.folder.c_str(), &disk) != 0) return true;  // writing will tell
  return std::uint64_t{disk.f_bavail} * disk.f_frsize >= options_.least_free + more;
}

std::uint64_t cache_folder::evict(std::uint64_t more) const {
  const auto all = entries();
  std::uint64_t freed = 0;
  for (const cache_entry& e : all) {
    if (has_room(more)) break;
    if (remove_if_unused(e)) freed += e.bytes;
  }
  return freed;
}

}  // namespace millrace
