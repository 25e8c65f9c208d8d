#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/memory.h"
#include "engine/runtime.h"
#include "engine/scope.h"
#include "engine/stats.h"
#include "io/source.h"
#include "pipeline/ledger.h"
#include "pipeline/sample.h"

namespace millrace {

// What the stages of one run share. Made by engine::run, outlives its streams; spine only.
struct run_context {
  runtime& threads;
  io_thread& io;
  scope& tasks;
  const source_registry& sources;
  source_options source;
  source_options source_again;  // for samples that are read again: a little at a time
  host_allocator& allocator;
  memory_plan memory;
  source_counters counters;
  ledger counts;

  // Told by the lanes, to the stages behind them.
  int rank = 0;
  int world_size = 1;
  std::vector<std::int64_t> lanes;  // of this rank

  // Told by the stages behind, before those in front are made.
  int batch_size = 1;       // images that share one block
  int batches_queued = 0;   // by prefetch stages
  bool drops_last = false;  // what does not fill a batch

  // Notices are given once, not for every lane.
  bool told_of_short_shuffle = false;
  bool told_of_lost_rate = false;

  // The figures of a stage, made at its first mention. Addresses are stable.
  struct stage_figures {
    std::string name;
    std::uint64_t items = 0;
    std::uint64_t bytes = 0;
    std::uint64_t served = 0;  // ticks that the stage behind waited for this one
  };
  std::deque<stage_figures> stages;
  stage_figures& figures(const std::string& name) {
    for (auto& s : stages) {
      if (s.name == name) return s;
    }
    return stages.emplace_back(stage_figures{.name = name});
  }
};

struct shard_index;
struct untar_options;
class sample_source;

// One lane of a run: a sequence of shards read one after the other, and the memory for it.
struct lane_context {
  run_context& run;
  std::int64_t lane = 0;
  std::size_t lanes = 1;       // of all ranks
  std::size_t lanes_here = 1;  // of this rank
  std::string within = {};     // names the source of a mix that this lane is of

  // Set by the head of the plan, shards(): the list, and the memory to read it with.
  std::shared_ptr<const std::vector<std::string>> shards = {};
  std::shared_ptr<const shard_index> index = {};  // null: none
  std::shared_ptr<memory_share> reads = {};       // read buffers
  std::shared_ptr<memory_share> members = {};     // members that straddle two read buffers
  std::shared_ptr<memory_share> again = {};       // read buffers for samples that are read again
  // Set by the stages behind it.
  std::shared_ptr<const untar_options> untar = {};   // as the stage of that name was made
  std::shared_ptr<const sample_source> format = {};  // how samples are read, and read again
  // Of a mix, in the place of all these: the lanes of its sources.
  struct part {
    std::int64_t first_shard = 0;  // how many shards the sources before it have
    lane_context* lane = nullptr;
  };
  std::vector<part> parts = {};
  // What the sample stages of this lane do, in order: also to samples that are read again.
  std::vector<std::function<result<std::optional<sample>>(sample)>> sample_stages = {};
  // Of `members`, what samples being put together hold: more cannot be waited for.
  std::shared_ptr<std::size_t> held_by_groups = std::make_shared<std::size_t>(0);

  std::string id(std::string_view stage) const {
    return "lane" + std::to_string(lane) + "/" + within + std::string(stage);
  }
  source_context source() const {
    const source_options& options = reads == again ? run.source_again : run.source;
    return {run.threads, run.io, run.tasks, reads, options, run.counters};
  }
  // The same lane with read buffers of its own, to read samples again beside the shard that is
  // open: neither waits for buffers that the other holds.
  lane_context reading_again() const {
    lane_context out = *this;
    out.reads = again;
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
