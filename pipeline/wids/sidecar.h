#pragma once

#include <string>
#include <string_view>

#include "engine/result.h"
#include "pipeline/shard_index.h"

namespace millrace {

class written_file;

// i.json -> i.offsets.
std::string sidecar_of(const std::string& index_url);

// The same of an index that is written to this path: beside the index itself, where that is a link.
std::string sidecar_place(const std::string& index_path);
// Where the one of a local index is read: beside the path or, where none is there, at its place.
std::string sidecar_there(const std::string& index_path);

// Writes an index out, and its sidecar where there is one, and gives them their final names. An
// index never has the offsets of another one, even after a kill or a loss of power: in between,
// when all is on the disk but the names, it has none. What is no file, such as a pipe, stays where
// the older sidecar would be.
// Through a link, what stands beside the link goes, too.
// What killed processes left of both is removed. Returns whether an older sidecar is gone and no
// new one in its place. Throws `failure`.
bool commit_index(written_file& index, const std::string& index_path, written_file* sidecar);

// The sidecar: a fingerprint of which shards these are, and in which order; per shard its size, its
// number of samples, as differences the blocks at which they begin, and the sums of their names,
// two bytes each; a CRC-32C at the end.
std::string offsets_text(const shard_index& index);
// Fails with bad_index where it is damaged, or of another index or order. One of version 1, which
// has no fingerprint, is known by sizes and numbers alone; versions 1 and 2 have no names.
result<void> add_offsets(shard_index& index, std::string_view offsets, const std::string& where);

}  // namespace millrace
