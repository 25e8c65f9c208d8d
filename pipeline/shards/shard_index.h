#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "pipeline/samples/sample_name.h"

namespace millrace {

// The facts about a list of shards that are known before any of them is read: counts, sizes and
// digests, as in a wids v1 JSON file, and where each sample begins, as in its file of offsets. From
// read_index(), or parse_index().
struct shard_index {
  static constexpr std::int64_t block_bytes = 512;  // unit of offsets: tar's block
  // An entry of the index.
  struct shard {
    std::string url;           // as it is opened
    std::int64_t samples = 0;  // their number
    std::int64_t bytes = 0;    // of the file; 0: unknown
    std::string md5;           // hexadecimal; empty: unknown
    std::string dataset;       // the name of the part to which it belongs
    // Blocks (`block_bytes`) at which its samples begin, then the one after the last; empty:
    // unknown.
    std::vector<std::uint32_t> blocks;
    std::vector<std::uint16_t> names;  // name_sum() of each sample; empty: unknown
  };
  std::string name;           // of the dataset
  std::string info;           // a description
  std::string base;           // base of relative URLs
  std::vector<shard> shards;  // in the order of the list

  // The number of samples of all shards.
  std::int64_t samples() const;
  // The bytes of all shards whose size is known.
  std::int64_t bytes() const;
  // Whether the offsets of the samples of all shards are known.
  bool has_offsets() const;
  // For each shard, the number of samples of the shards before it.
  std::vector<std::int64_t> first_samples() const;
};

// Returns the text of an index that another one includes.
using text_loader = std::function<result<std::string>(const std::string& url)>;
// The hint of errors about an index that is damaged, or that its shards do not match.
inline constexpr const char* index_again_hint = "`millrace index create` writes a new index";
// The default limit for the memory of an index.
inline constexpr std::size_t usual_index_bytes = std::size_t{512} << 20;
// An index from JSON text. `where` is its URL: relative URLs of shards are relative to its folder,
// or to `base` if that is not empty, or else to the base that the JSON names. `load` gives the text
// of indexes that it includes (`datasets`, one level deep). Fails with bad_index, naming the wrong
// entry: among others if an index that is not a local file (and may come from anybody) names a
// command or a local file; and with too_large if it takes more than `most` bytes of memory, half
// for the JSON as it is parsed and half for what is kept.
result<shard_index> parse_index(std::string_view json, const std::string& where,
                                const std::string& base, const text_loader& load,
                                std::size_t most = usual_index_bytes);

// `url` if it is absolute, else merged with `base` as wids does: appended to it, or replacing its
// path if the URL begins with '/'.
std::string url_in_base(const std::string& base, const std::string& url);

// A URL without the parts that authorise requests: user and password, signatures, tokens. For files
// that others read.
std::string url_without_secrets(const std::string& url);

}  // namespace millrace
