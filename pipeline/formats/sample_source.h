#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/formats/class_folders.h"
#include "pipeline/plan.h"
#include "pipeline/shards.h"

namespace millrace {

// The samples of one shard, in order, from somewhere in it on. On the spine; outlived by its lane.
class sample_reader {
 public:
  virtual ~sample_reader() = default;
  // The next sample, with its lane, shard, offset and epoch; nullopt behind the last one. Errors as
  // those of a stage: after a skippable one, which stands for one sample, the reader goes on,
  // unless is_broken().
  virtual awaitable<result<std::optional<sample>>> next() = 0;
  // The position from which another reader continues with the next sample, and the number of
  // samples given before it.
  virtual std::int64_t offset() const = 0;
  virtual std::int64_t given() const = 0;
  // What was seen before that position and decides what follows it, if anything is: the reader that
  // continues there has it as its lane_cursor's `before`, and so has that of the lane's next shard.
  virtual seen_before before() const { return {}; }
  // The position of a state that is saved while next() runs, or after it has failed: in front of
  // what it reads or has failed with. nullopt: where next() was called. Asked for only where the
  // format keeps its bounds itself.
  virtual std::optional<lane_cursor> in_front() const { return std::nullopt; }
  // The head of the shard, once it has been read: saved with the position, and in the lane_cursor
  // of a reader that continues there, which fails with `changed` if the shard begins with other
  // bytes.
  virtual shard_head head() const { return {}; }
  // The error given last was dealt with: a state that is saved from now on is after it.
  virtual void leave_failed() {}
  // After an error: whether this shard gives no more samples.
  virtual bool is_broken() const = 0;
};

// A format: how samples are read from what a URL names. Implement this to add a format; shuffling,
// resuming, ranks and all later stages need nothing else. Called from several lanes, on one thread.
class sample_source {
 public:
  virtual ~sample_source() = default;
  // A reader from at.offset on: 0, the beginning of a sample, or the position that another reader
  // gave. Does no I/O yet. `which` names the shard; its bounds (begin, end, skip, samples) are kept
  // by open_within(), with which all stages open readers.
  virtual std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                              const lane_cursor& at) const = 0;
  // Whether readers keep the bounds of `which` themselves, because they can at less cost.
  virtual bool keeps_bounds() const { return false; }
  // What its samples depend on beside the list of URLs, as a fingerprint: a state that was saved
  // with another one is refused. 0: nothing.
  virtual std::uint64_t identity() const { return 0; }
};

// A reader of the samples of `which` alone: those that begin in [begin, end), without the first
// `skip`, at most `samples`. From its beginning (`at` by default), or from the position that
// another reader gave. Its samples have their lane, shard, epoch and URL from here.
std::unique_ptr<sample_reader> open_within(const sample_source& source, lane_context& lane,
                                           const shard_ref& which, const lane_cursor& at);

// `which` is dealt out by an index that says another number of samples than the shard has ("more",
// "fewer"): one rank would get other samples than the others expect. What all readers end with.
error differs_from_index(const shard_ref& which, const std::string& url, std::string_view how);
// Whether the last sample to be given is the shard's last one in the index of the lane. False where
// that is not known.
bool ends_with_shard(const lane_context& lane, const shard_ref& which);

// Reads the samples of a lane's shards. Saves and restores by what its readers say.
lane_stage<shard_ref, sample> read_samples(std::shared_ptr<const sample_source> source);

// The samples of class folders: each file has the key "CLASS/NAME", the field that its extension
// names, and the number of its class as the field cls. Files are permuted one by one, so no shuffle
// is needed.
std::shared_ptr<const sample_source> folder_samples(const class_folders& tree);
lane_plan<sample> raw_samples(const class_folders& tree, const shard_list_options& options = {});

}  // namespace millrace
