#pragma once

#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {

class written_file;

// i.json -> i.offsets.
std::string sidecar_of(const std::string& index_url);

// The sidecar's path for an index written to `index_path`. If that is a link: next to its target.
std::string sidecar_place(const std::string& index_path);
// The path to read the sidecar of a local index from: next to `index_path` or, if there is none,
// sidecar_place().
std::string sidecar_there(const std::string& index_path);

// Writes out an index, and its sidecar if there is one, and gives both their final names. An index
// never has another index's offsets, even after a kill or a power failure: once everything but the
// names is on disk, it has none until this returns. Anything but a file, such as a pipe, at the
// path of the older sidecar is left there. If `index_path` is a link, a sidecar next to the link is
// removed too. Removes what killed processes left of both. Returns whether an older sidecar was
// removed without a replacement. Throws `failure`.
bool commit_index(written_file& index, const std::string& index_path, written_file* sidecar);

// The sidecar: a fingerprint of the shards and their order; for each shard its size, its number of
// samples, the differences between the blocks at which samples begin, and the checksums of their
// names, two bytes each; a CRC-32C at the end.
std::string offsets_text(const shard_index& index);
// Fails with bad_index if the sidecar is damaged, or belongs to another index or order. Version 1
// has no fingerprint, so it is matched by sizes and counts only; versions 1 and 2 have no names.
result<void> add_offsets(shard_index& index, std::string_view offsets, const std::string& where);

}  // namespace millrace
