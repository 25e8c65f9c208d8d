#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoints/checkpoint_choice.h"
#include "train/checkpoints/checkpoint_files.h"
#include "train/checkpoints/checkpoint_names.h"

namespace millrace {

// The folder of --checkpoint-dir. It holds the checkpoints of one run. Only the run that wrote a
// file deletes it; files in the way of another run are set aside. Called only by rank 0. All throw
// `failure` (io_failed) if the file system refuses.

// The newest checkpoint in `folder` that is whole and passes `check`, which throws `failure`
// otherwise; calls `note` for newer ones. nullopt: the folder has none. If it has some, but none
// can be resumed, throws the error kind of the newest, such as integrity if that is damaged.
std::optional<chosen_checkpoint> choose_checkpoint(
    const std::string& folder, const std::function<void(const chosen_checkpoint&)>& check,
    const std::function<void(const std::string&)>& note);

// Checks whether a run resumed from `resumed` (empty: a new run) may write into `folder`: creates
// it, tries to write there, and throws `failure` (usage) if it has checkpoints that are neither
// `resumed` nor older than that, unless they may be set aside.
void check_folder(const std::string& folder, const std::string& resumed, bool may_set_aside);
// Moves those into FOLDER/set-aside-N. Returns that path; empty: there were none.
std::string set_aside_newer(const std::string& folder, const std::string& resumed);

// Whether `path` leads to this step's checkpoint in `folder` itself: not in another folder, not
// through a link to another one, and not set aside.
bool is_checkpoint_in(const std::string& folder, const std::string& path, std::int64_t step);

// Writes files under a partial name, syncs them, then renames them to the checkpoint's name,
// atomically replacing an existing one. Then removes the remains of unfinished writes.
void write_checkpoint(const std::string& folder, const std::string& name,
                      const checkpoint_files& files);

// Removes all checkpoints of `run` except the `keep` newest ones and `resumed`. What others put
// into their folders is kept in FOLDER/left-of-step-NNNNNNNNNN, and reported.
void remove_old(const std::string& folder, const std::string& run, std::size_t keep,
                const std::string& resumed);

// Adds a file to a whole checkpoint; it appears whole or not at all.
void add_to_checkpoint(const std::string& path, const std::string& name, const std::string& text);

}  // namespace millrace
