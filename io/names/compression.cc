#include "io/names/compression.h"

#include <algorithm>
#include <array>

#include "engine/scope.h"
#include "engine/words.h"

namespace millrace {
namespace {

using namespace std::string_view_literals;

struct known_compression {
  compression how;
  std::string_view magic;
  std::string_view ending;   // of any file
  std::string_view archive;  // of a tar; empty: only .tar and `ending`
  std::uint64_t window;
};

constexpr std::array all{
    known_compression{compression::gzip, "\x1f\x8b"sv, ".gz", ".tgz", 0},
    known_compression{compression::bzip2, "BZh"sv, ".bz2", ".tbz2", 4_MiB},
    known_compression{compression::xz, "\xfd\x37zXZ\0"sv, ".xz", ".txz", largest_window},
    known_compression{compression::zstd, "\x28\xb5\x2f\xfd"sv, ".zst", ".tzst", largest_window},
    known_compression{compression::lz4, "\x04\x22\x4d\x18"sv, ".lz4", "", 24_MiB},
    known_compression{compression::lzw, "\x1f\x9d"sv, ".z", "", 0}};
static_assert(std::ranges::all_of(all, [](auto& c) { return c.magic.size() <= magic_bytes; }));

bool is_short_archive(std::string_view lower, const known_compression& c) {
  return !c.archive.empty() && lower.ends_with(c.archive);
}

}  // namespace

compression compression_of(std::string_view first) {
  const auto is_it = [&](const auto& c) { return first.starts_with(c.magic); };
  const auto* const found = std::ranges::find_if(all, is_it);
  return found == all.end() ? compression::none : found->how;
}

compression compression_named(std::string_view url) {
  const std::string lower = lowered(url.substr(0, url.find_first_of("?#")));
  const auto is_it = [&](const auto& c) {
    return lower.ends_with(c.ending) || is_short_archive(lower, c);
  };
  const auto* const found = std::ranges::find_if(all, is_it);
  return found == all.end() ? compression::none : found->how;
}

bool is_archive_name(std::string_view name) {
  constexpr std::string_view tar = ".tar";
  const std::string lower = lowered(name);
  const auto is_it = [&](const auto& c) {
    if (is_short_archive(lower, c)) return true;
    const std::string_view packed = lower;
    return packed.ends_with(c.ending) &&
           packed.substr(0, packed.size() - c.ending.size()).ends_with(tar);
  };
  return lower.ends_with(tar) || std::ranges::any_of(all, is_it);
}

std::size_t usual_window(compression how) {
  const auto* const found = std::ranges::find(all, how, &known_compression::how);
  return found == all.end() ? 0 : static_cast<std::size_t>(found->window);
}

}  // namespace millrace
