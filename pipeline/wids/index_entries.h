#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "pipeline/shard_index.h"

namespace millrace {

// Which entry of an index a shard is, wherever it lies and however it is spelled: that of its URL
// (of a local file: its path, normalised), else that of its file name, where only one entry and
// only one of the shards have it. Every command has this rule. Immutable, so any thread.
class index_entries {
 public:
  // Of the index, which must outlive the object, for these shards.
  index_entries(const shard_index& said, const std::vector<std::string>& urls);

  // `shard` is null where none is listed, or where it cannot be told which it is.
  struct found {
    const shard_index::shard* shard = nullptr;
    bool is_ambiguous = false;
  };
  found find(const std::string& url) const;

 private:
  struct of_name {
    const shard_index::shard* entry = nullptr;  // the first
    int entries = 0;
    int places = 0;  // different ones, of the shards asked for
  };
  std::unordered_map<std::string, const shard_index::shard*> by_place_;
  std::unordered_map<std::string, of_name> by_name_;
};

// What to say of a shard that is not found (integrity).
error not_listed(const std::string& url, bool is_ambiguous);

// What is compared of a shard's URL: the whole path of a local file, without "." and "..", or the
// URL as it is. Looks at the current folder alone.
std::string shard_place(const std::string& url);

}  // namespace millrace
