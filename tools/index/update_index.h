#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace millrace {

class engine;

// The changes that update_index() makes; an empty one leaves its entry as it is.
struct index_changes {
  std::string name = {};          // of the dataset
  std::string info = {};          // a description
  std::string base = {};          // base of the shards' URLs
  std::string folder = {};        // of every shard
  bool no_folder = false;         // removes the folders of all shards; excludes `folder`
  bool rebase = false;            // the folder of all shards becomes the base
  std::optional<bool> keep = {};  // the flag of this name
  // Called with the new base of `rebase`, without secrets; may be null.
  std::function<void(const std::string& base)> rebasing = nullptr;
};

// The result of update_index().
struct index_update {
  std::size_t shards = 0;  // in the list
  std::string copy;        // the path of the previous index
};

// Changes the index at the local path `path`, keeps the previous one, and its offsets, as .bak
// files, and reorders the offsets like the shards, which are sorted by their URLs where those
// change. Files appear when they are complete. Blocks. Not on a thread of the engine.
//
// Throws `failure`: bad_index if the file is not an index, too_large if it needs more than a
// quarter of the engine's budget, usage if another run is writing it, if another kind of file is in
// the place of a .bak file, if two shards would get one URL, or if `rebase` finds shards in several
// folders; and what reading or writing a file throws.
index_update update_index(engine& eng, const std::string& path, const index_changes& changes);

}  // namespace millrace
