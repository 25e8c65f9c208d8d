#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/coroutines/scope.h"
#include "engine/memory/memory.h"
#include "engine/memory/work_memory.h"
#include "engine/threads/runtime.h"
#include "io/registry.h"
#include "io/source.h"
#include "pipeline/plan/downstream_needs.h"
#include "pipeline/plan/ledger.h"
#include "pipeline/samples/sample.h"
#include "pipeline/state/shard_head.h"

namespace millrace {

// Reading through this many bytes of a shard costs more than opening it again.
inline constexpr std::int64_t wide_gap = 4 << 20;

// Outcome of shards that are drawn forever (epoch_mode::resample): if they give nothing, the run
// ends.
struct drawn_shards {
  std::uint64_t items = 0;   // samples that were read, and errors
  std::uint64_t shards = 0;  // drawn
  // The draws after which the only shard with samples was missed with a probability of one in ten
  // million, at least 64. 0: epochs end.
  std::uint64_t shards_of_a_pass = 0;
  // Those of the lanes, or of the sources of a mix, in place of the two above.
  std::vector<std::shared_ptr<const drawn_shards>> of_parts = {};

  // Whether shards are drawn forever.
  bool is_endless() const { return shards_of_a_pass > 0 || !of_parts.empty(); }
  // The number of times that all shards were drawn. Only if is_endless().
  std::uint64_t passes() const;
};

// The error of a run that was stopped.
error run_stopped();

// The lanes that a rank reads.
struct lanes_of_rank {
  int rank = 0;                                                            // in [0, world_size)
  int world_size = 1;                                                      // ranks of the job
  std::vector<std::int64_t> lanes = {};                                    // of this rank
  std::int64_t lanes_in_all = 0;                                           // of all ranks
  std::shared_ptr<drawn_shards> drawn = std::make_shared<drawn_shards>();  // by lanes
};

// Facts about decoding that decode_jpeg() gives to later stages.
struct decoded_images {
  bool into_batches = false;    // images are slots of a batch's block, in order
  std::size_t image_bytes = 0;  // of the largest
};

// The state that the stages of one run share, also those of a program (docs/stages.md). Made by
// engine::run(), outlives the streams of the run. Spine only.
struct run_context {
  runtime& threads;                // the engine's
  io_thread& io;                   // the spine: the I/O thread of this run
  scope& tasks;                    // for coroutines of stages: it is joined before the streams end
  const source_registry& sources;  // of that I/O thread
  source_options source;           // how to read
  source_options source_again;     // the same for samples that are read again: a little at a time
  host_allocator& allocator;       // of batches
  memory_plan memory;              // claim shares when a stage is made, before the first next()
  const std::atomic<bool>& stop_asked;  // set by any thread
  bool tell_skipped = true;             // log skipped samples that the ledger lists as notices
  std::function<std::string(const std::string&)> in_words;  // as engine_options has it
  source_counters counters;                                 // of all sources of the run
  ledger counts;                                            // of the samples of the run

  // Whether the run is to end. A coroutine that waits is ended where it waits. A coroutine that
  // never waits, because it has all that it needs, must check this in each round of a loop that
  // asks no earlier stage for an item, and return run_stopped(). Earlier stages check it
  // themselves.
  bool is_stopped() const { return stop_asked.load(std::memory_order_relaxed); }

  downstream_needs downstream;  // of the stages, as far as they are made
  lanes_of_rank place;          // set by the lanes
  decoded_images decoded;       // set by decode_jpeg()
  bool has_own_epochs = false;  // set by epochs_of(): a stage ends epochs that the data do not

  // The name of a stage's record in states: the stage's, with a number from the second stage of a
  // kind on. Call it once for each stage that is made.
  std::string record_of(std::string_view stage);
  std::map<std::string, int> stages_of_a_kind;  // made so far

  std::uint64_t lost_counted = 0;  // part of the ledger's lost, counted by an error policy
  bool knows_losses = false;       // set by lanes: an index says what is lost, which may be nothing

  // Notices are given once, not for every lane.
  bool reported_short_shuffle = false;
  bool reported_lost_rate = false;    // for lack of memory
  bool reported_other_order = false;  // of a companion shard
  int reported_companions = 0;        // notices about companions that do not fit

  // The memory of stages that decode: null until memory_for_decoding().
  std::shared_ptr<work_memory> decoding;
  // A share of the budget for work that decodes anything, the same for all stages; the first call
  // claims it. Call it when a stage is made.
  std::shared_ptr<work_memory> memory_for_decoding();

  // The figures of a stage, from which loader::stats() are made.
  struct stage_figures {
    std::string name;          // of the stage
    std::uint64_t items = 0;   // given
    std::uint64_t bytes = 0;   // of payload in them
    std::uint64_t served = 0;  // ticks that the next stage waited for this one, in finished waits
    std::uint64_t open = 0;    // unfinished waits, also of a run that was stopped in them
    std::uint64_t opened = 0;  // the sum of the ticks at which those began

    // Ticks that the next stage has waited for this one at the tick `now`.
    std::uint64_t served_until(std::uint64_t now) const { return served + open * now - opened; }
  };
  std::vector<std::unique_ptr<stage_figures>> stages;  // in the order in which data passes
  // The figures of a stage, made when first asked for. Valid as long as the run.
  stage_figures& figures(const std::string& name);
};

// Memory of a stage that holds samples, for those that it has read again: used if the lane's own
// has no room for one in addition to what is held of that.
struct spare_memory {
  std::shared_ptr<memory_share> share;  // the stage's
  std::size_t held = 0;  // bytes that cannot be waited for; readers add what they take
};

struct shard_index;
struct companion_memory;
class sample_source;
class state;

// The epochs of a mix's source, by those of the mix: a source continues where the mix ends an epoch
// before it does.
struct source_epochs {
  std::int64_t first = 0;         // of the source
  std::int64_t first_of_mix = 0;  // the epoch of the mix that begins with it
  // Epochs of the mix, [from, to), in order, at whose ends the source was still in one of its own.
  std::vector<std::pair<std::int64_t, std::int64_t>> unfinished = {};

  // The source's epoch in an epoch of the mix.
  std::int64_t in(std::int64_t of_mix) const;
  // Notes that the source has not finished its epoch at the end of this epoch of the mix.
  void goes_on_after(std::int64_t of_mix);
};

// A function of a sample stage: the sample, changed or not; nullopt drops it.
using sample_function = std::function<result<std::optional<sample>>(sample)>;

// The memory that a lane reads with. Set by the head of the plan, shards(), before the other stages
// are made.
struct lane_memory {
  std::shared_ptr<memory_share> reads = {};    // read buffers
  std::size_t least_reads = 0;                 // bytes of `reads` that every shard needs
  std::shared_ptr<memory_share> members = {};  // members that straddle two read buffers
  std::shared_ptr<memory_share> again = {};    // read buffers for samples that are read again
  // Without the least of these, nothing can be read: `reads`, `members`, and those of join().
  std::vector<std::pair<std::shared_ptr<memory_share>, std::size_t>> needed = {};
  // Of each join(), in order, to read its companion shards with.
  std::vector<std::shared_ptr<companion_memory>> companions = {};
  // Bytes of `members` pinned by samples under construction, and by one that a shuffle has no room
  // for. Waiting for more would deadlock.
  std::shared_ptr<std::size_t> held_members = std::make_shared<std::size_t>(0);
  spare_memory* spare = nullptr;  // of a lane that reads samples again; null: none
};

// A lane of a run: a sequence of shards that are read one after the other, and the memory for it.
// Made by engine::run(), outlives the streams of the lane. Spine only.
struct lane_context {
  run_context& run;            // of which it is a lane
  std::int64_t lane = 0;       // its number, in [0, lanes)
  std::size_t lanes = 1;       // of all ranks
  std::size_t lanes_here = 1;  // of this rank
  std::string within = {};     // of a mix: the beginning of record names of the lane's source
  // As the plan has them, also for samples that are read again: the format, with what join() adds,
  // and the sample stages in order, which are applied to them as well.
  std::shared_ptr<const sample_source> format = {};  // null: of a mix, or of a head that names none
  std::vector<sample_function> sample_stages = {};   // empty: none
  source_epochs epochs = {};                         // of a source of a mix
  bool leaves_samples_out = false;                   // by a sample stage, or by join()

  // Set by the head of the plan, shards(), before the other stages are made: the list, and the
  // memory to read it with.
  std::shared_ptr<const std::vector<std::string>> shards = {};
  std::shared_ptr<const shard_index> index = {};  // null: none
  lane_memory memory = {};                        // to read the shards with
  bool has_shards = true;  // false: it reads nothing, unless it resumes what other lanes have begun
  // A lane of a source of a mix.
  struct part {
    std::int64_t first_shard = 0;  // the number of shards of the sources before it
    lane_context* lane = nullptr;  // outlives the mix's own
  };
  std::vector<part> parts = {};  // of a mix, instead of all these: its sources
  // The part to which a shard in the list of the mix belongs; null: none.
  const part* part_of(std::int64_t shard) const;
  // The lane that reads a shard of this lane's list: this one or, of a mix, one of a source.
  const lane_context& reader_of(std::int64_t shard) const;

  // Outcome of the lane's shards: a head adds each sample that it gives to `items`.
  std::shared_ptr<drawn_shards> drawn = std::make_shared<drawn_shards>();
  shard_head head = {};  // of the shard that the restored state was in

  // Takes from a state what readers compare shards with, here and in the sources of a mix.
  void restore(const state& from);

  // The name of a stage's record of this lane.
  std::string id(std::string_view stage) const;
  // The surroundings of a source that reads a shard of this lane.
  source_context source() const;
  // The same lane with separate read buffers, to read samples again while a shard is open: neither
  // then waits for buffers that the other holds. Memory in `beside`, if given, is used as well.
  lane_context reading_again(spare_memory* beside) const;
};

// The payload bytes of an item, for a stage's figures; 0 if its type does not tell.
template <class T>
std::size_t payload_of(const T& item) {
  if constexpr (requires { item.payload_bytes(); }) return item.payload_bytes();
  if constexpr (requires { item.bytes_per_image(); }) return item.bytes_per_image();
  if constexpr (requires { item.data.size(); }) return item.data.size();
  if constexpr (requires { item.span().size(); }) return item.span().size();
  return 0;
}

}  // namespace millrace
