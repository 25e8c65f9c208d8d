#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/result.h"

namespace millrace {

class engine;

// What is known of a list of shards before any of them is read: counts, sizes and digests, as a
// wids v1 JSON file says, and where each sample begins, as its sidecar says.
struct shard_index {
  struct shard {
    std::string url;
    std::int64_t samples = 0;
    std::int64_t bytes = 0;  // of the file; 0: unknown
    std::string md5;         // hexadecimal; empty: unknown
    std::string dataset;     // the name of the part that it belongs to
    // Blocks of 512 bytes at which its samples begin, and the one behind the last; empty: unknown.
    std::vector<std::uint32_t> blocks;
  };
  std::string name;
  std::string info;
  std::string base;  // what relative URLs stand behind
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
// entry is wrong.
using text_loader = std::function<result<std::string>(const std::string& url)>;
result<shard_index> parse_index(std::string_view json, const std::string& where,
                                const std::string& base, const text_loader& load);

// The same from a file or URL, with its sidecar where there is one. Blocks. Throws `failure`.
shard_index read_index(engine& eng, const std::string& url, const std::string& base = "");

// The text of a URL. Blocks. Throws `failure`.
std::string read_text(engine& eng, const std::string& url);

// `url` where it stands by itself, else merged with `base` as wids does: behind it, or in the place
// of its path where the URL begins with '/'.
std::string url_in_base(const std::string& base, const std::string& url);

// i.json -> i.offsets.
std::string sidecar_of(const std::string& index_url);

// The sidecar: per shard its size, its number of samples, and, as differences, the blocks at which
// they begin; a CRC-32C at the end.
std::string offsets_text(const shard_index& index);
// Fails with bad_index where it is damaged or of another index.
result<void> add_offsets(shard_index& index, std::string_view offsets, const std::string& where);

}  // namespace millrace
