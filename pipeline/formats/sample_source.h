#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/formats/class_folders.h"
#include "pipeline/plan/plan.h"
#include "pipeline/shards/shards.h"

namespace millrace {

// The samples of one shard, in order, from some place in it on. Derive from it to read a format of
// your own. On the spine; its lane outlives it.
class sample_reader {
 public:
  virtual ~sample_reader() = default;
  // The next sample, with its lane, shard, offset and epoch; nullopt after the last one. Errors are
  // as those of a stage: after a skippable one, which stands for one sample, the reader continues,
  // unless is_broken().
  virtual awaitable<result<std::optional<sample>>> next() = 0;
  // The position from which another reader continues with the next sample.
  virtual std::int64_t offset() const = 0;
  // The number of samples of the shard before that position.
  virtual std::int64_t given() const = 0;
  // Returns what the reader saw before that position, if it decides what follows. The reader that
  // continues there gets it as its lane_cursor's `before`; so does the reader of the lane's next
  // shard.
  virtual seen_before before() const { return {}; }
  // The position to save while next() runs, or after it has failed: just before the sample that is
  // being read, or the one that failed. nullopt: where next() was called. Asked for only if the
  // format keeps its bounds itself.
  virtual std::optional<lane_cursor> in_front() const { return std::nullopt; }
  // The head of the shard, once it has been read: saved with the position, and in the lane_cursor
  // of a reader that continues there, which fails with `changed` if the shard begins with other
  // bytes.
  virtual shard_head head() const { return {}; }
  // The error given last has been handled: a state that is saved from now on is after it.
  virtual void leave_failed() {}
  // After an error: whether this shard gives no more samples.
  virtual bool is_broken() const = 0;
};

// A format: how samples are read from what a URL names. Derive from it to add a format; shuffling,
// resuming, ranks and all later stages need nothing else. Called from several lanes, on one thread.
// Examples: examples/own_format.cc, docs/formats.md.
class sample_source {
 public:
  virtual ~sample_source() = default;
  // A reader from at.offset on: 0, the beginning of a sample, or the position that another reader
  // gave. Does no I/O yet. `which` names the shard; its bounds (begin, end, skip, samples) are kept
  // by open_within(), by which all stages open readers. Report errors from next(): returning null
  // is an error (usage).
  virtual std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                              const lane_cursor& at) const = 0;
  // Whether readers keep the bounds of `which` themselves, because they can at less cost.
  virtual bool keeps_bounds() const { return false; }
  // A fingerprint of what its samples depend on in addition to the list of URLs: a state that was
  // saved with another one is refused. 0: nothing.
  virtual std::uint64_t identity() const { return 0; }
};

// A reader of the samples of `which` alone: those that begin in [begin, end), without the first
// `skip`, at most `samples`. From its beginning (`at` by default), or from the position that
// another reader gave. It sets lane, shard, epoch and URL of its samples.
std::unique_ptr<sample_reader> open_within(const sample_source& source, lane_context& lane,
                                           const shard_ref& which, const lane_cursor& at);

// The error with which all readers end if `which` was cut by an index that gives another number of
// samples than the shard has (`how`: "more", "fewer"): one rank would get other samples than the
// others expect.
error differs_from_index(const shard_ref& which, const std::string& url, std::string_view how);
// Whether the last sample of `which` is the shard's last one by the index of the lane. False if
// that is unknown.
bool ends_with_shard(const lane_context& lane, const shard_ref& which);

// Reads the samples of a lane's shards by a format. Saves and restores by what its readers report.
// Examples: examples/own_format.cc, docs/formats.md.
lane_stage<shard_ref, sample> read_samples(std::shared_ptr<const sample_source> source);

// The files of class folders as a format: each has the key "CLASS/NAME", the field that its
// extension names, and the number of its class as the field cls. Files are permuted one by one, so
// no shuffle is needed.
std::shared_ptr<const sample_source> folder_samples(const class_folders& tree);
// The head of a plan: the samples of class folders, as folder_samples() gives them. Throws as
// shards() does.
lane_plan<sample> raw_samples(const class_folders& tree, const shard_list_options& options = {});

}  // namespace millrace
