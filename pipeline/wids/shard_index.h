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
class written_file;

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

// The same from a file or URL, with its sidecar where there is one, within the engine's budget.
// Blocks. Throws `failure`.
shard_index read_index(engine& eng, const std::string& url, const std::string& base = "");

// The text of an index, of at most an eighth of the engine's budget. Blocks. Throws `failure`.
std::string read_text(engine& eng, const std::string& url);
// The bytes that the JSON of an index may take when it is parsed: a quarter of the budget.
std::size_t room_for_index(const engine& eng);

// `url` where it is absolute, else merged with `base` as wids does: appended to it, or replacing
// its path where the URL begins with '/'.
std::string url_in_base(const std::string& base, const std::string& url);

// A URL without the parts that authorise requests: user and password, signatures, tokens. For files
// that others read.
std::string without_secrets(const std::string& url);

// i.json -> i.offsets.
std::string sidecar_of(const std::string& index_url);

// Renames a written index, and its sidecar where there is one, to their final names. An index never
// has the offsets of another one, even after a kill or a loss of power: in between it has none.
// What killed processes left of both is removed. Returns whether an older sidecar is gone and no
// new one in its place. Throws `failure`.
bool commit_index(written_file& index, const std::string& index_path, written_file* sidecar);

// The sidecar: a fingerprint of which shards these are, and in which order; per shard its size, its
// number of samples, and, as differences, the blocks at which they begin; a CRC-32C at the end.
std::string offsets_text(const shard_index& index);
// Fails with bad_index where it is damaged, or of another index or order. One of version 1, which
// has no fingerprint, is known by sizes and numbers alone.
result<void> add_offsets(shard_index& index, std::string_view offsets, const std::string& where);

}  // namespace millrace
