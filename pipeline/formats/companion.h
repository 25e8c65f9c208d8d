#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pipeline/formats/companion_index.h"
#include "pipeline/formats/join_options.h"
#include "pipeline/formats/tar_reader.h"
#include "pipeline/plan/run_context.h"
#include "pipeline/samples/sample.h"
#include "pipeline/state/lane_cursor.h"

namespace millrace {

// What a lane has to read the companions of its shards with: claimed when the lane is made.
struct companion_memory {
  // Of one reader.
  struct reading {
    std::shared_ptr<memory_share> reads;
    std::size_t least_reads = 0;
    std::shared_ptr<memory_share> members;
  };
  reading in_turn;                      // beside the lane's main shard
  reading again;                        // for samples that are read again
  std::shared_ptr<memory_share> held;   // samples read before they are asked for
  std::shared_ptr<memory_share> index;  // never acquired: indexes are ordinary memory
  companion_indexes indexes = {};

  // Claims it from the run's plan. `url`: of a companion shard; others are of its kind.
  static std::shared_ptr<companion_memory> claimed(lane_context& lane, const join_options& how,
                                                   const std::string& url);
};

// The samples of one companion shard, found by key. Reads forward from where the last one was
// found, and holds what it passes as far as there is room: a companion in the order of its main
// shard is read once. A key that is not there costs one pass to the end; what was passed and not
// held is read again by its place. So the answer depends on the shard alone, never on what was
// asked before. On the spine.
class companion {
 public:
  // `how`, `memory` and `lane` outlive it. `is_again`: for samples that are read again.
  companion(lane_context& lane, companion_memory& memory, const join_options& how, std::string url,
            bool is_again, bool afresh);
  companion(const companion&) = delete;
  companion& operator=(const companion&) = delete;

  // The sample of `key`, without fields that are not wanted; nullopt: there is none. Errors name
  // the companion's URL, its byte and the key, and are skippable.
  awaitable<result<std::optional<sample>>> find(std::string key);
  // Reads the rest, to know all keys. An error of the shard is in `index().broken`; fails with
  // those that end a run alone.
  awaitable<result<void>> read_rest();

  const companion_index& index() const { return *index_; }
  const std::string& url() const { return *url_; }
  // A key that was read and not asked for; empty if none is known.
  const std::string& example() const { return held_.empty() ? example_ : held_.begin()->first; }

 private:
  void open_at(std::int64_t offset, const seen_before& before = {});
  void note_reached();
  // The next sample at the end of the index, which it is added to; nullopt: there is no more.
  awaitable<result<std::optional<sample>>> next_unknown();
  // The sample that begins at a byte within the index.
  awaitable<result<std::optional<sample>>> read_at(std::string key, std::int64_t offset);
  std::optional<error> ended_by(error why);
  bool hold(sample s);
  std::optional<sample> held(const std::string& key);
  sample wanted(sample s) const;
  error named(error why, const std::string& key) const;
  error perhaps(error damaged, const std::string& key) const;
  void report_order();

  lane_context& lane_;  // of the main shard
  companion_memory& memory_;
  const join_options& how_;
  std::shared_ptr<const std::string> url_;
  std::unique_ptr<lane_context> own_lane_;
  std::shared_ptr<const untar_options> untar_;
  std::shared_ptr<companion_index> index_;
  std::unique_ptr<tar_reader> reader_;
  std::unordered_map<std::string, sample> held_;
  std::size_t held_bytes_ = 0;  // with names
  std::string example_;
  bool has_reached_end_ = false;  // the last search read to the end: the next place is before it
  std::size_t returns_ = 0;       // samples that were read again by their places, out of order
};

}  // namespace millrace
