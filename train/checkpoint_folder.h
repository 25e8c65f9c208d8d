#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint_files.h"
#include "train/checkpoint_names.h"

namespace millrace {

// The folder of --checkpoint-dir. It holds the checkpoints of one run, and only the run that wrote
// a file deletes it: files that are in the way of another run are set aside. Called by rank 0
// alone. All throw `failure` (io_failed) where the file system refuses.

struct chosen_checkpoint {
  std::string path;
  checkpoint_files files;
};

// What `resume` names: a checkpoint's path, or "auto" for the newest in `folder` that is whole and
// that `check` lets pass, which throws `failure` for others; calls `note` for newer ones. nullopt:
// there is none in the folder. Where there are, and none can be resumed from, throws the kind of
// what is wrong with the newest: integrity where it is damaged. What read_checkpoint() throws for a
// path.
std::optional<chosen_checkpoint> choose_checkpoint(
    const std::string& folder, const std::string& resume,
    const std::function<void(const chosen_checkpoint&)>& check,
    const std::function<void(const std::string&)>& note);

// Checks whether a run that was resumed from `resumed` (empty: a fresh one) may write into
// `folder`: makes it, tries to write there, and throws `failure` (usage) where it has checkpoints
// that are neither `resumed` nor older than that, unless they may be set aside.
void check_folder(const std::string& folder, const std::string& resumed, bool may_set_aside);
// Moves those into FOLDER/set-aside-N. Returns where to; empty: there were none.
std::string set_aside_newer(const std::string& folder, const std::string& resumed);

// Whether `path` leads to the folder of this step's checkpoint that lies in `folder` itself:
// neither in another one, nor behind a link to there, nor in one of those that were set aside.
bool is_checkpoint_in(const std::string& folder, const std::string& path, std::int64_t step);

// Writes files under a partial name, has them on disk, and gives them the checkpoint's name, in one
// step where there is such a one already. Then removes the remains of unfinished writes.
void write_checkpoint(const std::string& folder, const std::string& name,
                      const checkpoint_files& files);

// Removes all checkpoints of `run` except the `keep` newest ones and `resumed`. What others put
// into their folders stays, in FOLDER/left-of-step-NNNNNNNNNN, and is told of.
void remove_old(const std::string& folder, const std::string& run, std::size_t keep,
                const std::string& resumed);

// Adds a file to a whole checkpoint; it is whole or not there.
void add_to_checkpoint(const std::string& path, const std::string& name, const std::string& text);

}  // namespace millrace
