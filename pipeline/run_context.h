#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/memory.h"
#include "engine/runtime.h"
#include "engine/scope.h"
#include "engine/stats.h"
#include "engine/work_memory.h"
#include "io/registry.h"
#include "io/source.h"
#include "pipeline/ledger.h"
#include "pipeline/sample.h"
#include "pipeline/shard_head.h"

namespace millrace {

// What comes of shards that are drawn for ever (epoch_mode::resample): where nothing does, it ends.
struct drawn_shards {
  std::uint64_t items = 0;   // samples that were read, and errors
  std::uint64_t shards = 0;  // drawn
  // As many draws as miss the only shard with samples with a probability of one in ten millions, at
  // least 64. 0: epochs end.
  std::uint64_t shards_of_a_pass = 0;
  // Of lanes, or of the sources of a mix, in the place of the two above.
  std::vector<std::shared_ptr<const drawn_shards>> of_parts = {};

  bool is_endless() const { return shards_of_a_pass > 0 || !of_parts.empty(); }
  // How often all shards were drawn.
  std::uint64_t passes() const;
};

// What next() says of a run that was stopped.
inline error run_stopped() {
  return {errc::stopped, "the run was stopped"};
}

// The state that the stages of one run share. Made by engine::run, outlives its streams; spine
// only.
struct run_context {
  runtime& threads;
  io_thread& io;
  scope& tasks;
  const source_registry& sources;
  source_options source;
  source_options source_again;  // for samples that are read again: a little at a time
  host_allocator& allocator;
  memory_plan memory;
  const std::atomic<bool>& stop_asked;  // set by any thread
  bool tell_skipped = true;             // as notices, those that the ledger lists
  source_counters counters;
  ledger counts;

  // Whether the run is to end. A coroutine that waits is ended where it waits. One that has all it
  // needs never waits: a loop in it that asks no stage in front for an item looks here each time
  // round, and returns run_stopped(). The stages that are asked look themselves.
  bool is_stopped() const { return stop_asked.load(std::memory_order_relaxed); }

  // Set by the lanes, for later stages.
  int rank = 0;
  int world_size = 1;
  std::vector<std::int64_t> lanes;                                         // of this rank
  std::int64_t lanes_in_all = 0;                                           // of all ranks
  std::shared_ptr<drawn_shards> drawn = std::make_shared<drawn_shards>();  // by lanes

  // Set by later stages, before the earlier ones are made.
  bool has_batches = false;     // there is a batch stage
  int batch_size = 1;           // images of a batch
  int batches_held = 0;         // at once, by the program and stages after the batch stage
  int batches_queued = 0;       // by prefetch stages
  std::size_t images_held = 0;  // by stages that wait for further images with these in hand
  bool in_order = false;        // batches get images in the order in which decode_jpeg gives them
  bool drops_last = false;      // what does not fill a batch
  bool ends_moved = false;      // epochs end for them where they do not for decode_jpeg

  // Of the plan, each of which holds one end of epoch at most.
  std::size_t stages_joined = 0;
  // The name of a stage's record in states: of two stages of a kind, each has one of its own.
  std::string record_of(std::string_view stage);
  std::map<std::string, int> stages_of_a_kind;  // as they are made

  // Set by decode_jpeg for later stages.
  bool decoded_into_batches = false;  // images are slots of a batch's block, in order
  std::size_t image_bytes = 0;        // of the largest

  std::uint64_t lost_counted = 0;  // of the ledger's, by a policy for errors

  // Notices are given once, not for every lane.
  bool told_of_short_shuffle = false;
  bool told_of_lost_rate = false;

  // For stages whose work decodes anything: a share of the budget, claimed by the first of them.
  std::shared_ptr<work_memory> decoding;
  std::shared_ptr<work_memory> memory_for_decoding();

  // The figures of a stage, made at its first mention. Addresses are stable.
  struct stage_figures {
    std::string name;
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;
    std::uint64_t served = 0;  // ticks that the next stage waited for this one, of waits that ended
    std::uint64_t open = 0;    // waits that have not, also of a run that was stopped in them
    std::uint64_t opened = 0;  // the sum of the ticks at which they began

    std::uint64_t served_until(std::uint64_t now) const { return served + open * now - opened; }
  };
  std::vector<std::unique_ptr<stage_figures>> stages;
  stage_figures& figures(const std::string& name);
};

// Memory of a stage that holds samples, for those that it has read again: where the lane's own has
// no room for one beside what is held of that.
struct spare_memory {
  std::shared_ptr<memory_share> share;
  std::size_t held = 0;  // what cannot be waited for; readers add what they take
};

struct shard_index;
class sample_source;
class state;

// The epochs of a mix's source, by those of the mix: it goes on where the mix ends one before it.
struct source_epochs {
  std::int64_t first = 0;         // of the source
  std::int64_t first_of_mix = 0;  // which begin together
  // Of the mix, [from, to), in order: at whose ends the source was still in one of its own.
  std::vector<std::pair<std::int64_t, std::int64_t>> unfinished = {};

  std::int64_t in(std::int64_t of_mix) const;
  void goes_on_after(std::int64_t of_mix);
};

// A function of a sample stage: the sample, changed or not; nullopt drops it.
using sample_function = std::function<result<std::optional<sample>>(sample)>;

// One lane of a run: a sequence of shards read one after the other, and the memory for it.
struct lane_context {
  run_context& run;
  std::int64_t lane = 0;
  std::size_t lanes = 1;       // of all ranks
  std::size_t lanes_here = 1;  // of this rank
  std::string within = {};     // names the source of a mix that this lane is of
  // As the plan has them, for samples that are read again: the format, and the sample stages in
  // order, which are applied to them as well.
  std::shared_ptr<const sample_source> format = {};  // null: of a mix, or of a head that names none
  std::vector<sample_function> sample_stages = {};
  source_epochs epochs = {};  // of a source of a mix

  // Set by the head of the plan, shards(), before the other stages are made: the list, and the
  // memory to read it with.
  std::shared_ptr<const std::vector<std::string>> shards = {};
  std::shared_ptr<const shard_index> index = {};  // null: none
  std::shared_ptr<memory_share> reads = {};       // read buffers
  std::size_t least_reads = 0;                    // bytes of `reads` that any one shard needs
  std::shared_ptr<memory_share> members = {};     // members that straddle two read buffers
  std::shared_ptr<memory_share> again = {};       // read buffers for samples that are read again
  // Of a mix, in the place of these: the lanes of its sources.
  struct part {
    std::int64_t first_shard = 0;  // how many shards the sources before it have
    lane_context* lane = nullptr;
  };
  std::vector<part> parts = {};
  // The part that a shard in the list of the mix is of; null: of none.
  const part* part_of(std::int64_t shard) const;
  // The lane that reads a shard of this one's list: of a mix, one of a source.
  const lane_context& reader_of(std::int64_t shard) const {
    const part* const of = part_of(shard);
    return of == nullptr ? *this : of->lane->reader_of(shard - of->first_shard);
  }

  // Counts, kept by the stages that draw and read: a head adds each sample that it gives to
  // `items`.
  std::shared_ptr<drawn_shards> drawn = std::make_shared<drawn_shards>();
  // Bytes of `members` pinned until more is read: by samples under construction, and by one that a
  // shuffle has no room for. Waiting for them would deadlock.
  std::shared_ptr<std::size_t> held_members = std::make_shared<std::size_t>(0);
  spare_memory* spare = nullptr;  // of a lane that reads samples again; null: none
  shard_head head = {};           // of the shard that the restored state was in

  // Takes from a state what readers compare shards with, here and in the sources of a mix.
  void restore(const state& from);

  std::string id(std::string_view stage) const {
    return "lane" + std::to_string(lane) + "/" + within + std::string(stage);
  }
  source_context source() const {
    const source_options& options = reads == again ? run.source_again : run.source;
    return {run.threads, run.io, run.tasks, reads, options, run.counters};
  }
  // The same lane with separate read buffers, to read samples again while a shard is open: neither
  // waits for buffers that the other holds.
  lane_context reading_again(spare_memory* beside) const {
    lane_context out = *this;
    out.reads = again;
    out.spare = beside;
    return out;
  }
};

// The payload bytes of an item, for a stage's figures.
template <class T>
std::size_t payload_of(const T& item) {
  if constexpr (requires { item.payload_bytes(); }) return item.payload_bytes();
  if constexpr (requires { item.bytes_per_image(); }) return item.bytes_per_image();
  if constexpr (requires { item.data.size(); }) return item.data.size();
  if constexpr (requires { item.span().size(); }) return item.span().size();
  return 0;
}

}  // namespace millrace
