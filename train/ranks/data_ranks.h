#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/host/job_place.h"

namespace millrace {

class process_group;

// Which part of the data each rank of a job reads. By itself each has a part of its own. Where
// ranks share parts, as those among which a model is divided do, the ranks of one part read the
// same samples in the same steps, and count as one: an epoch's samples are divided among the parts,
// and one position is saved for each. A value; functions may be called from any thread.
class data_ranks {
 public:
  // One rank, which reads all.
  data_ranks() = default;
  // Each rank has a part of its own.
  explicit data_ranks(const job_place& own);
  // Collective. This rank reads part `rank` of `world`; if `rank` < 0, consecutive ranks share a
  // part (of 4 ranks and 2 parts, ranks 0 and 1 read part 0). Throws `failure` (usage) on all ranks
  // unless they agree on `world`, and every part has equally many ranks, at least one.
  data_ranks(process_group& group, int rank, int world);

  // The part, as the place of a job with one rank for each part: for shard_list_options, and all
  // else that divides the data.
  const job_place& place() const { return place_; }
  // Ranks that read each part.
  int sharers() const { return sharers_; }
  // Whether this rank is the lowest of its part's, the one that counts.
  bool is_first() const { return is_first_; }

  // Returns the texts of the ranks that count, in the order of parts. `of_ranks`: the texts of all
  // ranks; may be empty.
  std::vector<std::string> of_parts(std::vector<std::string> of_ranks) const;
  // A number whose sum over all ranks is 0 where the ranks of each part have the same `mark`, and
  // hardly ever else. At most 65,536 ranks.
  std::int64_t balanced(std::uint64_t mark) const;

 private:
  job_place place_;
  int sharers_ = 1;
  bool is_first_ = true;
  std::vector<int> firsts_;  // the lowest rank of each part; empty: each rank has its own
};

}  // namespace millrace
