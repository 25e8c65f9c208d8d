#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/stores/stored_objects.h"
#include "pipeline/run/engine_options.h"
#include "train/checkpoints/checkpoint_place.h"

namespace millrace {

// The parts of the name of a checkpoint below a prefix: step-NNNNNNNNNN, or with "-2" and so on.
struct stored_name {
  std::string step;    // "step-NNNNNNNNNN"
  int generation = 1;  // 1 without an ending
  auto operator<=>(const stored_name&) const = default;
};
// nullopt for other names. Pure.
std::optional<stored_name> parse_stored_name(std::string_view name);

// Checkpoints below a prefix of an object store: PREFIX/step-NNNNNNNNNN/ with the files of a
// checkpoint's folder. train.json, which lists the others with their checksums, is written last and
// deleted first: a checkpoint without it does not count, so that no reader sees half of one. Where
// the step's name is taken, by a checkpoint of that step that still counts or was set aside, the
// new one is PREFIX/step-NNNNNNNNNN-2/, then -3: a store cannot rename, and what counts is never
// overwritten. An object "set-aside" below a checkpoint's name makes runs pass over it.
//
// Two runs that write below one prefix are not kept apart by a lock, which would outlive a killed
// run. Each checkpoint begins with an object "claim" that is written only if there is none, where
// the store has that condition, and so does no other process write below its name; train.json is
// written likewise. Only whole checkpoints of the own run are deleted: half of one may be another
// process's upload. A run that finds a checkpoint of another process, newer than its own beginning,
// ends with `usage`.
class checkpoint_store final : public checkpoint_place {
 public:
  checkpoint_store(const std::string& prefix, const engine_options& reach);
  // The URL of the newest checkpoint below `prefix`; nullopt: there is none.
  static std::optional<std::string> newest_below(const std::string& prefix,
                                                 const engine_options& reach);

  void lock() override {}
  std::optional<chosen_checkpoint> newest(const checkpoint_check& check,
                                          const choice_note& note) override;
  void check(const std::string& resumed, bool may_set_aside) override;
  std::string set_aside_newer(const std::string& resumed) override;
  bool holds(const std::string& path, std::int64_t step) override;
  std::string path_of(std::int64_t step) const override;
  std::string write(std::int64_t step, const checkpoint_files& files) override;
  void remove_old(const std::string& run, std::size_t keep, const std::string& resumed) override;
  void add(const std::string& path, const std::string& name, const std::string& text) override;

 private:
  struct listed;
  static std::vector<listed> list(const stored_objects& objects);
  std::vector<listed> in_the_way(const std::string& resumed) const;
  std::string run_of(const listed& one) const;
  void check_alone(const std::vector<listed>& all, const std::string& run) const;
  void remove(const listed& one) const;
  std::string claim(stored_name name, const std::string& run) const;

  stored_objects objects_;
  engine_options reach_;
  std::vector<std::string> known_;  // checkpoints that were there at the start, or are this run's
  std::vector<std::string> aside_;  // of those
};

// Reads a checkpoint by its URL, on any server that shards are read from. Throws as
// read_checkpoint() does, and the error of a server that cannot be read.
checkpoint_files read_stored_checkpoint(const std::string& url, const engine_options& reach);

}  // namespace millrace
