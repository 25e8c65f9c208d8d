#include "pipeline/wids/sidecar.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <span>

#include "engine/base/fingerprint.h"
#include "engine/files/file_system.h"
#include "engine/files/written_file.h"
#include "io/hashes.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {
namespace {

constexpr std::string_view magic = "millrace offsets 3\n";
constexpr std::string_view magic_without_names = "millrace offsets 2\n";
constexpr std::string_view magic_without_identity = "millrace offsets 1\n";
static_assert(magic.size() == magic_without_names.size());
static_assert(magic.size() == magic_without_identity.size());

error bad_offsets(std::string what, const std::string& where) {
  return error(errc::bad_index, std::move(what)).at(where).hint(index_again_hint);
}

void put_number(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

std::optional<std::uint64_t> take_number(std::string_view& from) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !from.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(from.front());
    from.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

// Takes the names: one for each sample, or none.
bool take_names(std::string_view& from, shard_index::shard& to) {
  const auto count = take_number(from);
  if (!count || (*count != 0 && *count != static_cast<std::uint64_t>(to.samples)) ||
      *count > from.size() / 2) {
    return false;
  }
  to.names.clear();
  to.names.reserve(*count);
  for (std::uint64_t i = 0; i < *count; ++i) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(from[2 * i + at]); };
    to.names.push_back(static_cast<std::uint16_t>(byte(0) | byte(1) << 8));
  }
  from.remove_prefix(2 * *count);
  return true;
}

// Identifies the shards and their order, wherever they are: by digest, or else by file name.
std::uint64_t identity_of(const shard_index& index) {
  std::uint64_t so_far = fingerprint("");
  for (const auto& s : index.shards) {
    so_far = fingerprint(s.md5.empty() ? s.url.substr(s.url.rfind('/') + 1) : s.md5, so_far);
    so_far = fingerprint("\n", so_far);
  }
  return so_far;
}

}  // namespace

std::string sidecar_of(const std::string& index_url) {
  constexpr std::string_view json_ending = ".json";
  const bool is_json = index_url.ends_with(json_ending);
  return index_url.substr(0, index_url.size() - (is_json ? json_ending.size() : 0)) + ".offsets";
}

namespace {

// The regular file at `path`, or the target if `path` is a link; empty if there is none.
std::string file_at(const std::string& path) {
  struct stat there{};
  if (host_files().stat(path, there) != 0 || !S_ISREG(there.st_mode)) return "";
  struct stat itself{};
  const bool is_link = host_files().stat(path, itself, false) == 0 && S_ISLNK(itself.st_mode);
  std::error_code failed;
  const std::string target = is_link ? std::filesystem::canonical(path, failed).string() : path;
  return failed ? path : target;
}

}  // namespace

std::string sidecar_place(const std::string& index_path) {
  return sidecar_of(written_place(index_path));
}

std::string sidecar_there(const std::string& index_path) {
  std::string beside = sidecar_of(index_path);
  struct stat s{};
  return host_files().stat(beside, s) == -ENOENT ? sidecar_place(index_path) : beside;
}

namespace {

// Returns whether there was one.
bool remove_sidecar(const std::string& path, bool is_written_anew) {
  const std::string at_path = file_at(path);
  // If a link gets no new file, remove the link: its target may be the sidecar of another index.
  const std::string older = !is_written_anew && !at_path.empty() ? path : at_path;
  int code = older.empty() ? -ENOENT : host_files().unlink(older);
  const bool had_one = code == 0;
  if (had_one) code = sync_folder(std::filesystem::path(older).parent_path());
  if (code != 0 && code != -ENOENT) {
    throw failure(error(kind_of(-code), "cannot remove the offsets of the previous index")
                      .at(path)
                      .cause(-code));
  }
  return had_one;
}

}  // namespace

bool commit_index(written_file& index, const std::string& index_path, written_file* sidecar) {
  const std::string sidecar_path = sidecar_place(index_path);
  const std::string beside_link = sidecar_of(index_path);
  index.sync();
  if (sidecar != nullptr) sidecar->sync();
  bool had_one = beside_link != sidecar_path && remove_sidecar(beside_link, false);
  had_one = remove_sidecar(sidecar_path, sidecar != nullptr) || had_one;
  index.commit();
  if (sidecar != nullptr) sidecar->commit();
  remove_partial_files(std::array{index_path, sidecar_path});
  return had_one && sidecar == nullptr;
}

std::string offsets_text(const shard_index& index) {
  std::string out(magic);
  put_number(out, identity_of(index));
  put_number(out, index.shards.size());
  for (const auto& s : index.shards) {
    put_number(out, static_cast<std::uint64_t>(s.bytes));
    put_number(out, static_cast<std::uint64_t>(s.samples));
    put_number(out, s.blocks.size());
    std::uint32_t before = 0;
    for (const std::uint32_t block : s.blocks) {
      put_number(out, block - before);
      before = block;
    }
    put_number(out, s.names.size());
    for (const std::uint16_t name : s.names) {
      out.push_back(static_cast<char>(name & 0xff));
      out.push_back(static_cast<char>(name >> 8));
    }
  }
  return out + crc_text(out);
}

result<void> add_offsets(shard_index& index, std::string_view text, const std::string& where) {
  constexpr std::size_t crc_digits = 8;
  const bool has_names = text.starts_with(magic);
  const bool has_identity = has_names || text.starts_with(magic_without_names);
  if (!(has_identity || text.starts_with(magic_without_identity)) ||
      text.size() < magic.size() + crc_digits ||
      crc_text(text.substr(0, text.size() - crc_digits)) != text.substr(text.size() - crc_digits)) {
    return bad_offsets("the offsets are damaged, or of another version", where);
  }
  auto rest = text.substr(magic.size(), text.size() - magic.size() - crc_digits);
  const auto another = [&] { return bad_offsets("the offsets belong to another index", where); };
  if (has_identity && take_number(rest) != identity_of(index)) return another();
  if (take_number(rest) != index.shards.size()) return another();
  for (auto& s : index.shards) {
    const auto bytes = take_number(rest);
    const auto samples = take_number(rest);
    if (!bytes || !samples || *samples != static_cast<std::uint64_t>(s.samples) ||
        (s.bytes > 0 && *bytes != static_cast<std::uint64_t>(s.bytes))) {
      return another();
    }
    const auto blocks = take_number(rest);
    // Bounds the count by the text: each takes at least a byte.
    if (!blocks || *blocks > rest.size() || (*blocks != 0 && *blocks != *samples + 1)) {
      return another();
    }
    s.blocks.clear();
    s.blocks.reserve(*blocks);
    std::uint64_t block = 0;
    for (std::uint64_t i = 0; i < *blocks; ++i) {
      const auto step = take_number(rest);
      const bool is_empty = step && *step == 0 && i > 0;  // a sample of zero bytes
      if (!step || is_empty || *step > ~std::uint32_t{0} - block) return another();
      block += *step;
      s.blocks.push_back(static_cast<std::uint32_t>(block));
    }
    if (*bytes > 0 && block * tar_parser::block_size > *bytes) return another();
    if (has_names && !take_names(rest, s)) return another();
  }
  if (!rest.empty()) return another();
  return {};
}

}  // namespace millrace
