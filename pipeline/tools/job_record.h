#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipeline/tools/names.h"

namespace millrace {

// A job that writes shards. Its fingerprint covers everything that their bytes depend on.
struct job_record {
  std::uint64_t fingerprint = 0;
  std::uint64_t samples = 0;  // 0: not known
  std::uint64_t shards = 0;
  bool overwrite = false;
  int part = 1;  // of `parts`: shards that this run writes, each parts-th
  int parts = 1;
  std::span<const std::string> inputs = {};  // local paths, never to be replaced
};

// A job that has begun.
class shard_job {
 public:
  shard_job() = default;
  // `record`: its path and its first line. `marks`: files that are removed at its end.
  shard_job(std::string record, std::string about, bool is_resumed, std::vector<std::string> marks)
      : record_(std::move(record)),
        about_(std::move(about)),
        is_resumed_(is_resumed),
        marks_(std::move(marks)) {}

  // Whether the shards that are there are this very job's, left by a run that was stopped: then
  // they are complete, and stay.
  bool is_resumed() const { return is_resumed_; }
  // Before a shard gets its name. Throws `failure` (usage) where another job has begun to write
  // shards of these names meanwhile.
  void check_is_the_last() const;
  // All shards of this run are there.
  void end() const;

 private:
  std::string record_;
  std::string about_;
  bool is_resumed_ = false;
  std::vector<std::string> marks_;
};

// A hidden record beside the shards tells whose they are; it is written here, and holds counts and
// the fingerprint alone. While a run with `overwrite` replaces shards, a mark says so: where it is
// stopped, none of them is taken for its own, and it begins anew. Throws `failure` (usage) where
// shards of another job, or of such a run, are there and `overwrite` is not set, and where
// check_no_shard_after() does.
shard_job begin_job(const shard_names& names, const job_record& job);

// Throws `failure` (usage) where a shard of the name after the first `count` is there: of an older
// and larger job, it would be read as one of these.
void check_no_shard_after(const shard_names& names, std::size_t count);

// ".train-000000.pack.json" beside the first shard.
std::string record_path(const shard_names& names);

// "train-classes.txt" beside the shards: their name without its number, then `name`.
std::string beside_shards(const shard_names& names, const std::string& name);

// Writes a text file beside the shards. Throws `failure` (usage) where another one is there and
// `overwrite` is not set.
void write_beside(const std::string& path, std::string_view text, bool overwrite);

}  // namespace millrace
