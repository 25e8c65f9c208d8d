#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/plan.h"

namespace millrace {

enum class epoch_mode {
  exact,     // every shard once per epoch; ranks may differ in length
  resample,  // shards drawn with replacement, for ever
};

// In which order shards are read, and by whom: docs/order.md.
struct shard_list_options {
  std::uint64_t seed = 0;
  int rank = 0;        // of this process, in [0, world_size)
  int world_size = 1;  // processes that share the list
  // Sequences that the list is dealt to; rank r reads lanes l with l mod world_size = r. Global
  // batches hold the same samples for every world size that divides it. 0: the smallest multiple of
  // world_size that is at least 8.
  int lanes = 0;
  epoch_mode mode = epoch_mode::exact;
  bool shuffle = true;  // false: the list's own order, every epoch
  std::int64_t epochs = 1;
  std::int64_t first_epoch = 0;

  int lane_count() const;
};

// A shard to read.
struct shard_ref {
  std::int64_t shard = 0;  // index in the list
  std::int64_t draw = 0;   // which one of its lane's epoch, from 0
  std::int64_t epoch = 0;
};

// The shards of one lane, in order: a pure function of (number of shards, options, lane).
// Single-threaded.
class shard_order {
 public:
  shard_order(std::int64_t shards, const shard_list_options& options, std::int64_t lane);

  // nullopt ends an epoch; then the next one begins, if there is one.
  std::optional<shard_ref> next();

  std::int64_t epoch() const { return epoch_; }
  std::int64_t draw() const { return draw_; }
  void seek(std::int64_t epoch, std::int64_t draw);

 private:
  void plan_epoch();

  std::int64_t shards_;
  shard_list_options options_;
  std::int64_t lane_;
  std::int64_t epoch_;
  std::int64_t draw_ = 0;
  std::int64_t planned_epoch_ = -1;
  std::vector<std::int64_t> order_;  // of this lane, in the planned epoch
};

// The head of a plan. Throws `failure` (usage) for an empty list, a rank outside the world, or a
// number of lanes that the world size does not divide.
lane_plan<shard_ref> shards(std::vector<std::string> urls, const shard_list_options& options = {});

}  // namespace millrace
