#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/result.h"
#include "pipeline/sample_name.h"

namespace millrace {

// The facts about a list of shards that are known before any of them is read: counts, sizes and
// digests, as a wids v1 JSON file says, and where each sample begins, as its sidecar says.
struct shard_index {
  static constexpr std::int64_t block_bytes = 512;
  struct shard {
    std::string url;
    std::int64_t samples = 0;
    std::int64_t bytes = 0;  // of the file; 0: unknown
    std::string md5;         // hexadecimal; empty: unknown
    std::string dataset;     // the name of the part that it belongs to
    // Blocks (`block_bytes`) at which its samples begin, and the one after the last; empty:
    // unknown.
    std::vector<std::uint32_t> blocks;
    std::vector<std::uint16_t> names;  // name_sum() of each sample; empty: unknown
  };
  std::string name;
  std::string info;
  std::string base;  // base of relative URLs
  std::vector<shard> shards;

  std::int64_t samples() const;
  std::int64_t bytes() const;
  bool has_offsets() const;
  // Of each shard, in the list's order: how many samples lie before it.
  std::vector<std::int64_t> first_samples() const;
};

// An index from JSON text. `where` is its URL: shards with relative URLs are taken from its folder,
// from `base` where that is not empty, or else from the base that the JSON names. `load` gives the
// text of indices that it includes (`datasets`, one level deep). Fails with bad_index, saying which
// entry is wrong: among others, where an index that is no local file (a download of unknown hands)
// names a command or a local file; and with too_large where it takes more than `most` bytes of
// memory, half for the JSON as it is parsed and half for what is kept.
using text_loader = std::function<result<std::string>(const std::string& url)>;
inline constexpr std::size_t usual_index_bytes = std::size_t{512} << 20;
result<shard_index> parse_index(std::string_view json, const std::string& where,
                                const std::string& base, const text_loader& load,
                                std::size_t most = usual_index_bytes);

// `url` where it is absolute, else merged with `base` as wids does: appended to it, or replacing
// its path where the URL begins with '/'.
std::string url_in_base(const std::string& base, const std::string& url);

// A URL without the parts that authorise requests: user and password, signatures, tokens. For files
// that others read.
std::string without_secrets(const std::string& url);

}  // namespace millrace
