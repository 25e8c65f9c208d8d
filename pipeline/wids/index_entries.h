#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pipeline/shards/shard_index.h"

namespace millrace {

// Finds a shard's entry in an index, wherever the shard is and however its URL is spelled: by its
// URL (for a local file: its normalised path), else by its file name if only one entry and only one
// of the shards have that name. Every command follows this rule. Immutable, so any thread.
class index_entries {
 public:
  // `said` must outlive the object. `urls` are the shards to look up.
  index_entries(const shard_index& said, const std::vector<std::string>& urls);

  // `shard` is null if the shard is not listed or ambiguous.
  struct found {
    const shard_index::shard* shard = nullptr;
    bool is_ambiguous = false;
  };
  found find(const std::string& url) const;

 private:
  struct of_name {
    const shard_index::shard* entry = nullptr;  // the first with this name
    int entries = 0;
    int places = 0;  // distinct places of shards asked for
  };
  std::unordered_map<std::string, const shard_index::shard*> by_place_;
  std::unordered_map<std::string, of_name> by_name_;
};

// The error for a shard that is not found (integrity).
error not_listed(const std::string& url, bool is_ambiguous);

// The key by which shards are compared: the absolute path of a local file, without "." and "..", or
// the URL unchanged. Reads the current folder only.
std::string shard_place(const std::string& url);

// The first URL that names the same shard as an earlier one ("a" and "./a" are the same local
// file); nullopt: none does. Reads the current folder only.
std::optional<std::string> repeated_shard(const std::vector<std::string>& urls);

}  // namespace millrace
