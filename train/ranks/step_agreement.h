#pragma once

#include <cstdint>
#include <optional>

#include "train/ranks/distributed.h"

namespace millrace {

// One rank's report for a step.
struct rank_word {
  bool has_batch = false;     // another one, in this epoch
  std::int64_t samples = -1;  // of that batch; -1 on all ranks: nobody asks
  // data_ranks::balanced() of what that batch is; nullopt on all ranks: nobody asks.
  std::optional<std::int64_t> mark = {};
  bool has_failed = false;    // its data
  bool has_diverged = false;  // its loss is not finite
  bool asks_to_save = false;  // a checkpoint
  bool has_saved = false;     // a checkpoint, since it last said so
  int ending = 0;             // the signal that it is to end by; 0: none
};

// The combined reports of all ranks.
struct common_word {
  bool all_have_batches = false;  // another one, in this epoch
  bool one_has_batch = false;     // at least
  std::int64_t samples = 0;       // of all ranks' batches, if asked
  bool are_alike = true;          // the batches of ranks that share a part of the data, if asked
  bool one_failed = false;        // the data of one at least
  bool one_diverged = false;      // the loss of one at least is not finite
  bool save_asked = false;        // by one at least
  bool one_has_saved = false;     // at least
  int ending = 0;                 // the greatest signal by which one is to end; 0: none
};

// Begun by all ranks at the same point and answered by wait(), so that it costs nothing while other
// work goes on. One thread.
class step_agreement {
 public:
  // Begins it. Refers to the group.
  step_agreement(process_group& group, const rank_word& mine);
  // Throws `failure` (peer_lost).
  common_word wait();

 private:
  process_group::agreement begun_;
  bool asks_for_samples_;
  bool asks_for_mark_;
};

}  // namespace millrace
