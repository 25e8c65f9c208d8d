#include "io/cache/cached_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "engine/base/json_tree.h"
#include "engine/files/file_system.h"
#include "io/cache/entry_name.h"
#include "io/hashes.h"

namespace millrace {
namespace {

constexpr std::size_t end_bytes = 16;  // length, CRC, magic
// The text's limit: a URL and what servers call a version, whose headers are bounded.
constexpr std::uint32_t most_text = 1 << 20;

struct end_of_file {
  std::uint32_t text_bytes = 0;
  std::uint32_t sum = 0;
  std::array<char, cache_mark.size()> mark{};
};
static_assert(sizeof(end_of_file) == end_bytes);

}  // namespace

std::string cache_tail(const std::vector<std::uint32_t>& sums, const std::string& url,
                       const object_version& version) {
  // For people, who can read only UTF-8. The entry's name has what identifies the version.
  const std::string digest = version.digest ? hex(version.digest->value) : "";
  const std::string text = fmt::format(
      R"({{"bytes":{},"digest":{},"etag":{},"last_modified":{},"seen":{},"url":{}}})",
      version.total.value_or(0), json_text_of(digest), json_text_of(version.etag.value_or("")),
      json_text_of(version.last_modified.value_or("")), json_text_of(seen_name(url)),
      json_text_of(redacted(canonical_url(url))));
  std::string tail(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(std::uint32_t));
  tail += text;
  const std::array numbers{static_cast<std::uint32_t>(text.size()), crc32c(bytes_of(tail))};
  tail.append(reinterpret_cast<const char*>(numbers.data()), sizeof numbers);
  tail += cache_mark;
  return tail;
}

std::unique_ptr<cached_file> cached_file::of(held_file file) {
  lock_file(file.fd(), F_RDLCK);  // prevents eviction; so does its writer's lock
  std::unique_ptr<cached_file> made(new cached_file(std::move(file)));
  if (!made->read_tail()) return nullptr;
  return made;
}

std::uint64_t cache_tail_bytes(const std::string& url, const object_version& version) {
  const std::uint64_t blocks = version.total.value_or(0) / cache_block_bytes +
                               (version.total.value_or(0) % cache_block_bytes != 0 ? 1 : 0);
  return blocks * sizeof(std::uint32_t) + cache_tail({}, url, version).size();
}

std::optional<digest_check> cached_file::digest_of(std::uint64_t blocks,
                                                   const expected_digest& kind) const {
  digest_check out(kind);
  std::vector<std::byte> block(blocks > 0 ? cache_block_bytes : 0);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (!read_exactly(fd(), block.data(), block.size(), i * cache_block_bytes)) return std::nullopt;
    if (!has_sum(i, crc32c(block))) return std::nullopt;
    out.add(block);
  }
  return out;
}

bool cached_file::has_digest(const expected_digest& digest) const {
  return !digest.value.empty() && digest_ == hex(digest.value);
}

std::string cached_file::path() const {
  return fmt::format("/proc/self/fd/{}", file_.fd());
}

bool cached_file::read_tail() {
  struct stat info{};
  if (host_files().stat(fd(), info) != 0 || info.st_size < static_cast<off_t>(end_bytes))
    return false;
  const auto size = static_cast<std::uint64_t>(info.st_size);
  end_of_file end;
  if (!read_exactly(fd(), &end, sizeof end, size - end_bytes)) return false;
  if (std::string_view(end.mark.data(), end.mark.size()) != cache_mark) return false;
  if (end.text_bytes > most_text || end.text_bytes + end_bytes > size) return false;
  std::string text(end.text_bytes, '\0');
  const std::uint64_t text_at = size - end_bytes - text.size();
  if (!read_exactly(fd(), text.data(), text.size(), text_at)) return false;
  const auto what = json_tree::parse(text);
  const json_tree* const bytes = what ? what->find("bytes") : nullptr;
  if (bytes == nullptr || bytes->as<std::int64_t>() == nullptr) return false;
  if (*bytes->as<std::int64_t>() < 0) return false;
  bytes_ = static_cast<std::uint64_t>(*bytes->as<std::int64_t>());
  if (bytes_ > text_at) return false;
  const std::uint64_t blocks = (bytes_ + cache_block_bytes - 1) / cache_block_bytes;
  if (bytes_ + blocks * sizeof(std::uint32_t) != text_at) return false;
  sums_.resize(blocks);
  if (!read_exactly(fd(), sums_.data(), blocks * sizeof(std::uint32_t), bytes_)) return false;
  if (crc32c(bytes_of(text), crc32c(bytes_of(sums_))) != end.sum) return false;
  url_ = what->text_of("url");
  seen_ = what->text_of("seen");
  digest_ = what->text_of("digest");
  return true;
}

}  // namespace millrace
