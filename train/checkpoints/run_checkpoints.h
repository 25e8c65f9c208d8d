#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "pipeline/run/engine_options.h"
#include "train/checkpoints/background_work.h"
#include "train/checkpoints/checkpoint.h"
#include "train/checkpoints/checkpoint_place.h"
#include "train/ranks/data_ranks.h"
#include "train/ranks/distributed.h"

namespace millrace {

// The place of a run's checkpoints.
struct checkpoint_options {
  // Written by rank 0: a folder, or the URL of a prefix in an object store (s3://BUCKET/PREFIX);
  // empty: none are written.
  std::string folder;
  std::string resume;      // "auto" for the newest in `folder`, or a checkpoint; empty: a new run
  int keep = 2;            // checkpoints of this run that are kept, at least 1
  bool overwrite = false;  // set another run's checkpoints in `folder` aside
  // Where ranks share parts of the data: one state is saved for each. nullopt: they do not.
  std::optional<data_ranks> parts = {};
  // Called when one has been written, on rank 0 by the thread that did; null: nobody asks.
  std::function<void()> saved = nullptr;
  // How stores are reached, by its `source`; engine_options::from_environment() has the
  // credentials.
  engine_options reach = {};
};

// The checkpoints of one run: the one it is resumed from, and those it writes. One thread; refers
// to the group.
class run_checkpoints {
 public:
  // `state_bytes`: the memory that a rank's state of the data may take when it is read; 0: the
  // limit of state::from_json().
  run_checkpoints(checkpoint_options where, process_group& group, std::size_t state_bytes = 0);

  // These are called by all ranks at the same point, and throw `failure` on all or on none.

  // The checkpoint that the run is resumed from, as this rank sees it: with `lanes` lanes of the
  // data in all (lanes_of() a new state) and batches of `batch_size`. nullopt: a new run. Locks the
  // folder against other runs.
  std::optional<checkpoint> load(std::int64_t lanes, int batch_size);
  // Writes one, of the weights that rank 0 gives and the data of each rank, and removes old ones.
  // Sets its `run`. Throws bad_state, and writes nothing, if the weights or the optimizer's tensors
  // are not finite.
  void save(checkpoint c);
  // The same in the background: the tensors are copied, and may change when it returns. Waits first
  // for the one before it, and throws that one's failure. Call finish() before the end.
  void begin_save(checkpoint c);
  // Waits for what begin_save() began; throws its failure. Returns whether a save has finished that
  // has_saved() had not yet reported.
  bool finish();

  // Waits on this rank alone, so that newest() is what was written last; a failure is that of the
  // next finish().
  void settle();
  // On rank 0, between those: whether what begin_save() began has been written by now, once for
  // each. Throws its failure, on this rank alone: see lockstep::tell_failed().
  bool has_saved();

  // On rank 0, before the first one is written: sets other checkpoints aside.
  void set_aside();
  // On rank 0: adds the result of validation, a JSON object, to the newest checkpoint, which must
  // be in the folder, with the fingerprint of what was validated, taken before that.
  void add_validation(const std::string& line, const std::string& fingerprint);
  // The path of those figures in the checkpoint that the run was resumed from.
  std::string figures_of_resumed() const;

  // Whether the run writes checkpoints.
  bool are_written() const { return !where_.folder.empty(); }
  // Whether the newest is of this step and in the folder, or will be after finish(), so that it may
  // be written to and "auto" finds it. The same on all ranks.
  bool holds(std::int64_t step) const { return in_folder_ == step; }
  // The name of the run, the same for all its checkpoints.
  const std::string& run() const { return run_; }
  // The path of the checkpoint that the run was resumed from; empty: none.
  const std::string& resumed() const { return resumed_; }
  // The path of the newest that was written, or else resumed from; empty: none.
  const std::string& newest() const { return newest_; }

  // The error of a training that came to numbers that are not finite: what to do, and from where.
  error diverged(const std::string& what) const;
  // The error of a rank that lost another one, with where the run can be resumed. Waits for what
  // begin_save() began.
  error with_way_back(const error& peer_lost);

 private:
  std::optional<chosen_checkpoint> choose() const;

  checkpoint_options where_;
  process_group& group_;
  std::size_t state_bytes_;
  std::unique_ptr<checkpoint_place> place_;  // null: none are written
  std::string run_;
  std::string resumed_;
  std::string newest_;                     // that this process wrote or was resumed from
  std::optional<std::int64_t> in_folder_;  // its step, if it is in the folder, or will be
  std::string written_;                    // by the background, on rank 0: the path it got
  std::string writing_;                    // the path of what begin_save() began; empty: finished
  bool is_told_ = false;                   // by has_saved(), that it was written
  std::optional<error> failed_;            // of the writing
  background_work work_{"mr-checkpoint"};  // on rank 0; refers to what is above
};

}  // namespace millrace
