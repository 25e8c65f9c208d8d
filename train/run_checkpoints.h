#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/error.h"
#include "train/checkpoint.h"
#include "train/distributed.h"
#include "train/folder_lock.h"
#include "train/learner.h"
#include "train/options.h"

namespace millrace {

// The checkpoints of one run: the one it is resumed from, and those it writes into
// --checkpoint-dir. One thread; refers to the options and to the group.
class run_checkpoints {
 public:
  // `state_bytes`: the memory that a rank's state may take when it is read.
  run_checkpoints(const train_options& options, process_group& group, std::size_t state_bytes);

  // These are called by all ranks at the same point, and throw `failure` on all or on none.

  // The checkpoint that the run is resumed from, with this number of lanes; nullopt: a new run.
  // Locks the folder against other runs.
  std::optional<checkpoint> load(std::int64_t lanes);
  // Writes one, and removes old ones. Throws bad_state, and writes nothing, if weights or momentum
  // are not finite.
  void save(const checkpoint_record& record, const learner& from);
  // Whether the checkpoint was validated with this fingerprint.
  bool is_validated(const std::string& fingerprint) const;

  // On rank 0, before the first one is written: sets other checkpoints aside.
  void set_aside();
  // On rank 0: adds the result of validation, a JSON object, to the newest checkpoint, which must
  // be in the folder, with the validation_fingerprint() taken before validation began.
  void add_validation(const std::string& line, const std::string& fingerprint);
  // The path of those figures in the checkpoint that the run was resumed from.
  std::string figures_of_resumed() const;

  bool are_written() const { return !options_.checkpoint_dir.empty(); }
  // Whether the newest is of this step and in the folder, so that it may be written to and --resume
  // auto finds it. The same on all ranks.
  bool holds(std::int64_t step) const { return in_folder_ == step; }
  // The name of the run, the same for all its checkpoints.
  const std::string& run() const { return run_; }
  // Paths; empty: none.
  const std::string& resumed() const { return resumed_; }
  const std::string& newest() const { return newest_; }

  // The error of a training that came to numbers that are not finite: what to do, and from where.
  error diverged(const std::string& what) const;
  // The error of a rank that lost another one, with where the run can be resumed.
  error with_way_back(const error& peer_lost) const;

 private:
  const train_options& options_;
  process_group& group_;
  std::size_t state_bytes_;
  std::optional<folder_lock> lock_;  // on rank 0
  std::string run_;
  std::string resumed_;
  std::string newest_;                     // that this process wrote or was resumed from
  std::optional<std::int64_t> in_folder_;  // its step, where it lies in --checkpoint-dir
};

}  // namespace millrace
