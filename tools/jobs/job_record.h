#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/files/file_system.h"
#include "engine/files/line_file.h"
#include "engine/files/written_file.h"
#include "pipeline/formats/tar_writer.h"
#include "tools/jobs/names.h"

namespace millrace {

// A job that writes shards. Its fingerprint covers everything that their bytes depend on.
struct job_record {
  std::uint64_t fingerprint = 0;
  std::uint64_t samples = 0;  // 0: not known
  std::uint64_t shards = 0;
  bool overwrite = false;
  int part = 1;  // of `parts`: shards that this run writes, each parts-th
  int parts = 1;
  // Local paths, never to be replaced; asked for where there is something to replace.
  std::function<std::vector<std::string>()> inputs = [] { return std::vector<std::string>(); };
  std::string classes;  // a text to be written beside the shards; empty: none
};

// Shards by their numbers, as they were written.
using listed_shards = std::multimap<std::size_t, archive_bytes>;

// A job that has begun.
class shard_job {
 public:
  shard_job() = default;

  // Whether this shard of the part was there when the job began, whole, left by a run that was
  // stopped.
  bool has(std::size_t shard) const { return there_.contains(shard); }
  // Gives a shard its name, after adding it to the list. Throws `failure`: usage where
  // another job has begun to write shards of these names meanwhile, or another file stands under
  // the name than when the job began. Any thread.
  void add(std::size_t shard, tar_writer& written) const;
  // The file with the names of the classes; empty: there is none.
  const std::string& classes_file() const { return classes_file_; }
  // Removes what killed runs left half-written of this part's shards and of the job's records.
  void remove_leavings() const { remove_partial_files(files_); }

 private:
  friend shard_job begin_job(const shard_names& names, const job_record& job);
  shard_job(const shard_names& names, const job_record& job);

  void begin(const shard_names& names, const job_record& job);
  void hold_list();
  void leave_list();  // as it was found
  // Those that this job replaces. Throws `failure` where a living run holds one.
  std::vector<std::string> lists_of_others(const std::vector<std::string>& lists,
                                           const job_record& job) const;
  void check_shards(const shard_names& names, const job_record& job, const listed_shards& listed);
  void list(std::string_view line) const;

  std::map<std::size_t, file_stamp> replaced_;  // this part's shards that are there
  std::string record_;                          // its path
  std::string about_;                           // its line
  std::string list_path_;                       // of the shards of this part
  held_file held_;                              // the same, locked while the job runs
  std::vector<std::string> files_;              // of this part, and the records
  std::string classes_file_;
  std::set<std::size_t> there_;
  std::unique_ptr<line_file> list_;
};

// Hidden files beside the shards say whose they are: a record of the job, with counts and
// fingerprints alone, and for each part a list of the shards that it wrote, with the size, time and
// CRC of each. A shard that is in no list, or not as it stands there, is another job's, whatever
// its name; where the size fits and the time does not, its bytes are read. Nothing is written
// before all is checked; then what killed runs left half-written is removed, whose room may be
// needed. Throws `failure` (usage) where a shard of another job is there and
// `overwrite` is not set; where another run is writing shards of these names, by whatever pattern,
// but for other parts of the same job; where one of the names is that of an input, of a file of
// another kind, or of the same file as another name; where the text in place of the classes is
// not the one in an older record; and where check_no_shard_after() does. `names` must
// outlive what it returns.
shard_job begin_job(const shard_names& names, const job_record& job);

// For a job that keeps no record: throws `failure` (usage) where a living run is writing shards of
// these names, by the same pattern, or one of `shards`, the names from `first` on, or one of the
// two after them, where a run is that has completed those; or where one that keeps a record has
// written one of them.
void check_no_living_run(const shard_names& names, std::size_t first,
                         std::span<const std::string> shards);

// Throws `failure` (usage) where another living run, whether it keeps a record or not, is writing
// one of these shards now.
void check_not_being_written(std::span<const std::string> shards);

// Throws `failure` (usage) where a shard of the name after the first `count` is there: of an older
// and larger job, it would be read as one of these.
void check_no_shard_after(const shard_names& names, std::size_t count);

}  // namespace millrace
