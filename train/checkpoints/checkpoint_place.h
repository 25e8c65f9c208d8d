#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "train/checkpoints/checkpoint_choice.h"

namespace millrace {

// Where the checkpoints of one run are written: a folder, or a prefix of an object store. Called on
// rank 0 alone, one call at a time. All throw `failure` if the file system or the store refuses.
class checkpoint_place {
 public:
  virtual ~checkpoint_place() = default;
  // Keeps other runs out while this lives, as far as the place can: a store cannot. Throws
  // `failure` (usage) if another run is there.
  virtual void lock() = 0;
  // The newest checkpoint there that can be resumed: see newest_sound().
  virtual std::optional<chosen_checkpoint> newest(const checkpoint_check& check,
                                                  const choice_note& note) = 0;
  // Checks whether a run resumed from `resumed` (empty: a new run) may write there. Throws
  // `failure` (usage) if there are checkpoints that are neither `resumed` nor older than that,
  // unless they may be set aside.
  virtual void check(const std::string& resumed, bool may_set_aside) = 0;
  // Sets those aside, so that no run resumes from them and none of their files is touched. Returns
  // what was done, for people; empty: there were none.
  virtual std::string set_aside_newer(const std::string& resumed) = 0;
  // Whether `path` is a checkpoint of this step there, and not set aside. After check().
  virtual bool holds(const std::string& path, std::int64_t step) = 0;
  // The path that the checkpoint of a step usually gets.
  virtual std::string path_of(std::int64_t step) const = 0;
  // Writes a checkpoint, which counts once it is whole. Returns its path.
  virtual std::string write(std::int64_t step, const checkpoint_files& files) = 0;
  // Removes all checkpoints of `run` but the `keep` newest ones and `resumed`.
  virtual void remove_old(const std::string& run, std::size_t keep, const std::string& resumed) = 0;
  // Adds a file to a whole checkpoint; it appears whole or not at all.
  virtual void add(const std::string& path, const std::string& name, const std::string& text) = 0;
};

}  // namespace millrace
