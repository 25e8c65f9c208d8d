#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// The samples of one shard, in order, from somewhere in it on. On the spine; outlived by its lane.
class sample_reader {
 public:
  virtual ~sample_reader() = default;
  // The next sample, with its lane, shard, offset and epoch; nullopt behind the last one. Errors as
  // those of a stage: after a skippable one the reader goes on, unless is_broken().
  virtual awaitable<result<std::optional<sample>>> next() = 0;
  // Where a reader is to begin to give what this one gives next, and how many samples of the shard
  // were given before that.
  virtual std::int64_t offset() const = 0;
  virtual std::int64_t given() const = 0;
  // After an error: whether nothing more is to be had of this shard.
  virtual bool is_broken() const = 0;
};

// A format: how samples are read from what a URL names. This is the one seam to implement for
// another one; shuffling, resuming, ranks and all stages behind need nothing else of it. Called
// from several lanes, on one thread.
class sample_source {
 public:
  virtual ~sample_source() = default;
  // A reader of `which`, from its begin (`at` as it is made) or from where another one said that it
  // stood. Does no I/O yet.
  virtual std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                              const lane_cursor& at) const = 0;
};

// Reads the samples of a lane's shards. Saves and restores by what its readers say.
lane_stage<shard_ref, sample> read_samples(std::shared_ptr<const sample_source> source);

// A folder of class folders with images, as torchvision's ImageFolder takes it: each file is a
// sample of its own, with the key "CLASS/NAME", the field that its extension names, and the number
// of its class, in the order of their names, as the field cls. Files are permuted one by one, so no
// shuffle is needed. Looks into the folders at once; throws `failure` (not_found, no_samples).
struct class_folders {
  explicit class_folders(const std::string& root);

  std::vector<std::string> files;    // full paths, sorted
  std::vector<std::string> classes;  // names, sorted
  std::string root;
};
std::shared_ptr<const sample_source> folder_samples(const class_folders& tree);
lane_plan<sample> raw_samples(const class_folders& tree, const shard_list_options& options = {});

}  // namespace millrace
