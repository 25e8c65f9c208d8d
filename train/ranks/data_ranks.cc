#include "train/ranks/data_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "train/ranks/distributed.h"

namespace millrace {
namespace {

// One rank's report.
struct said_part {
  int rank = 0;   // of the data
  int world = 0;  // parts
};

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw failure(error(errc::usage, what).hint(hint));
}

// Every rank's, in the order of ranks, on every rank.
std::vector<said_part> said_by_all(process_group& group, int rank, int world) {
  const auto texts = group.gathered(fmt::format("{} {}", rank, world));
  std::istringstream all(group.shared(fmt::format("{}", fmt::join(texts, " "))));
  std::vector<said_part> out;
  for (said_part one; all >> one.rank >> one.world;) out.push_back(one);
  return out;
}

// Throws `failure` (usage) if ranks disagree on the parts, or the parts cannot have as many ranks.
void check_worlds(const std::vector<said_part>& all) {
  const int world = all.front().world;
  const auto odd = std::ranges::find_if(all, [&](const said_part& p) { return p.world != world; });
  if (odd != all.end()) {
    refuse(fmt::format("--data-world is {} on rank 0 and {} on rank {}", world, odd->world,
                       odd - all.begin()),
           "give all ranks the same one");
  }
  if (world >= 1 && std::ssize(all) % world == 0) return;
  refuse(fmt::format("--data-world {} does not divide the {} ranks of the job", world, all.size()),
         "use a number by which the ranks can be divided, so that each part of the data has as "
         "many");
}

// Throws `failure` (usage) if a rank has none of the parts, or parts have different numbers of
// ranks.
void check_parts(const std::vector<said_part>& all) {
  const int world = all.front().world;
  const auto beyond =
      std::ranges::find_if(all, [&](const said_part& p) { return p.rank >= world; });
  if (beyond != all.end()) {
    refuse(fmt::format("--data-rank {} of rank {} is not below --data-world {}", beyond->rank,
                       beyond - all.begin(), world),
           fmt::format("use 0 to {}", world - 1));
  }
  const auto each = std::ssize(all) / world;
  for (int part = 0; part < world; ++part) {
    const auto count = std::ranges::count(all, part, &said_part::rank);
    if (count == each) continue;
    refuse(fmt::format("{} of the {} ranks have --data-rank {}, and with --data-world {} it has to "
                       "be {}: samples of the others would count for more or less",
                       count, all.size(), part, world, each),
           "give each data rank as many ranks, or leave out --data-rank");
  }
}

}  // namespace

data_ranks::data_ranks(const job_place& own) : place_(own) {}

data_ranks::data_ranks(process_group& group, int rank, int world) : place_(group.place()) {
  auto all = said_by_all(group, rank, world);
  check_worlds(all);
  sharers_ = static_cast<int>(std::ssize(all)) / world;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].rank < 0) all[r].rank = static_cast<int>(r) / sharers_;
  }
  check_parts(all);
  const auto own = static_cast<std::size_t>(place_.rank);
  for (int part = 0; part < world; ++part) {
    const auto first = std::ranges::find(all, part, &said_part::rank) - all.begin();
    firsts_.push_back(static_cast<int>(first));
  }
  place_.rank = all[own].rank;
  place_.world_size = world;
  is_first_ = firsts_[static_cast<std::size_t>(place_.rank)] == group.place().rank;
}

std::vector<std::string> data_ranks::of_parts(std::vector<std::string> of_ranks) const {
  if (firsts_.empty() || of_ranks.empty()) return of_ranks;
  std::vector<std::string> out;
  for (const int first : firsts_) {
    out.push_back(std::move(of_ranks[static_cast<std::size_t>(first)]));
  }
  return out;
}

std::int64_t data_ranks::balanced(std::uint64_t mark) const {
  // Of 65,536 ranks the sum stays below 2^62.
  constexpr int bits_of_mark = 46;
  constexpr int bits = 64;
  const auto kept = static_cast<std::int64_t>(mark >> (bits - bits_of_mark));
  return is_first_ ? kept * (sharers_ - 1) : -kept;
}

}  // namespace millrace
