#pragma once

#include <memory>
#include <optional>

#include "pipeline/formats/sample_source.h"
#include "pipeline/run_context.h"
#include "pipeline/sample.h"

namespace millrace {

// Whether a shard in the list of the lane is compressed, by its name: it is read from its begin,
// and takes memory for a decoder beside the lane's own. False for one that is not in the list.
bool reads_through(const lane_context& lane, std::int64_t shard);

// Reads samples of a lane again, by their origins: for the samples that a restored stage held. It
// keeps the last shard open, so that samples that follow each other are read in one pass. On the
// spine; outlived by the lane, whose memory for reading again one of them may use at a time.
class again_reader {
 public:
  // The first `stages` sample stages of the lane are applied. `spare` outlives the reader; null:
  // none.
  again_reader(lane_context& lane, std::size_t stages, spare_memory* spare = nullptr);
  ~again_reader();
  again_reader(const again_reader&) = delete;
  again_reader& operator=(const again_reader&) = delete;

  // The sample at `where`, in read buffers, the memory of the lane's members and the spare one.
  // Fails with bad_state where the shard has no sample there any more, and where a stage leaves it
  // out that passed it before.
  awaitable<result<sample>> read(origin where);
  // The same in separate memory, from the share of the lane's members, as far as that is large
  // enough. Waits at most for the samples that were given before. nullopt where a stage now leaves
  // out a sample with which one `had_failed` before.
  awaitable<result<std::optional<sample>>> take(origin where, bool had_failed);
  // Gives back the memory of the open shard.
  void close();

 private:
  awaitable<result<sample>> read_in_part(origin where);
  awaitable<result<sample>> read_here(origin where);
  // With what follows it in the shard, as far as `end`; 0: to the shard's end.
  awaitable<result<sample>> read_until(origin where, std::int64_t end);
  // The byte where the sample ends, by the index; 0 where none says. What follows is damaged where
  // another lane, or nobody, has met it: this sample was given.
  std::int64_t indexed_end(origin where) const;
  std::shared_ptr<memory_share> members() const;

  // In separate memory, as take() says.
  awaitable<result<sample>> moved(sample s);
  // As the sample was given at first, at `where` of the list of the lane.
  result<sample> through_stages(sample s, origin where);

  lane_context& lane_;
  std::size_t stages_;
  spare_memory* spare_;
  bool is_left_out_ = false;  // by a stage, the sample that was asked for last
  // Of a mix: the reader of one of its sources.
  lane_context* part_ = nullptr;
  std::unique_ptr<again_reader> in_part_;
  std::unique_ptr<lane_context> again_;
  std::unique_ptr<sample_reader> samples_;
  std::int64_t shard_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t reached_ = 0;  // the offset of the last sample read
};

}  // namespace millrace
