#pragma once

#include <memory>
#include <optional>

#include "pipeline/formats/sample_source.h"
#include "pipeline/plan/run_context.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// Whether a shard in the lane's list is compressed, by its name. Such a shard is always read from
// its beginning, and its decoder needs memory in addition to the lane's. False for a shard that is
// not in the list.
bool reads_through(const lane_context& lane, std::int64_t shard);

// Reads samples of a lane again, by their origins: those that a restored stage held. Keeps the last
// shard open, so that consecutive samples are read in one pass. Spine only. The lane outlives it;
// only one reader at a time may use the lane's memory for reading again.
class again_reader {
 public:
  // Applies the first `stages` sample stages of the lane. `spare` outlives the reader; null: none.
  again_reader(lane_context& lane, std::size_t stages, spare_memory* spare = nullptr);
  ~again_reader();
  again_reader(const again_reader&) = delete;
  again_reader& operator=(const again_reader&) = delete;

  // Returns the sample at `where`, in read buffers, the memory of the lane's members and the spare
  // memory. Fails with bad_state if the shard no longer has a sample there, or if a stage that
  // passed the sample before now drops it.
  awaitable<result<sample>> read(origin where);
  // The same in separate memory, from the share of the lane's members, if that is large enough.
  // Waits at most for the samples that were returned before. nullopt if a stage `had_failed` on the
  // sample before, and one drops it now.
  awaitable<result<std::optional<sample>>> take(origin where, bool had_failed);
  // Closes the open shard, which frees its memory.
  void close();

 private:
  awaitable<result<sample>> read_in_part(origin where);
  awaitable<result<sample>> read_here(origin where);
  // Reads the shard no further than `end`; 0: to the shard's end.
  awaitable<result<sample>> read_until(origin where, std::int64_t end);
  // The byte at which the sample ends according to the index; 0: unknown. Damage after it does not
  // concern this sample, which was given before: another lane has met the damage, or none has.
  std::int64_t indexed_end(origin where) const;
  std::shared_ptr<memory_share> members() const;

  // Moves the sample to separate memory, as take() says.
  awaitable<result<sample>> moved(sample s);
  // Returns the sample as it was first given, after the sample stages. `where`: its origin in the
  // lane's list.
  result<sample> through_stages(sample s, origin where);

  lane_context& lane_;
  std::size_t stages_;
  spare_memory* spare_;
  bool is_left_out_ = false;  // a stage dropped the last sample
  // In a mix: the lane of one of its sources, and its reader.
  lane_context* part_ = nullptr;
  std::unique_ptr<again_reader> in_part_;
  std::unique_ptr<lane_context> again_;
  std::unique_ptr<sample_reader> samples_;
  std::int64_t shard_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t reached_ = 0;  // the offset of the last sample read
};

}  // namespace millrace
