#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace millrace {

// Every sample ends in exactly one of: delivered, skipped (by the kind of its error), dropped
// (whole, but in a batch that the end of an epoch cut short, or passed over: skipping()), left out
// (by a join), or lost. Lost are, with an index, the samples of a lane's epoch that neither came
// nor failed, unless functions of samples or a join may leave some out; without one, the samples
// that on_error (on_error.h) estimates for shards that cannot be opened. Written on the
// spine; a snapshot is a copy.
struct ledger {
  std::uint64_t delivered = 0;            // samples given to the consumer
  std::uint64_t dropped = 0;              // whole samples, of a batch cut short or passed over
  std::uint64_t lost = 0;                 // samples that never came
  std::uint64_t damaged = 0;              // images that came although their decoder warned
  std::map<errc, std::uint64_t> skipped;  // samples, by the kind of their error
  // The same for each finished epoch, as on_error saw it.
  struct epoch {
    std::uint64_t passed = 0;                    // items without error
    std::map<errc, std::uint64_t> skipped = {};  // by the kind of their error
    // Equal in all numbers.
    bool operator==(const epoch&) const = default;
  };
  std::vector<epoch> epochs;  // finished ones, in order
  // Shards that could not be read whole, once an epoch, of which nobody knows what they lack: there
  // is no index. `lost` is without that.
  std::uint64_t incomplete_shards = 0;
  std::uint64_t lost_bytes = 0;   // of damaged shards, skipped before the next valid header
  std::uint64_t not_files = 0;    // links and devices in archives
  std::uint64_t without_key = 0;  // files whose names have no extension: of no sample
  std::uint64_t meta_files = 0;   // named __x__, or below such a folder: of no sample
  // By join() and join_table(), samples without a companion or a row (missing_companion::skip).
  std::uint64_t left_out = 0;
  // And those that came without its fields (missing_companion::none).
  std::uint64_t without_companion = 0;
  // And companion samples, and repeated keys, in shards read from beginning to end, that no sample
  // of the main shard has.
  std::uint64_t companions_alone = 0;
  // The first max_listed messages: one for each skipped sample, and for each unreadable shard.
  std::vector<std::string> first_skipped;

  static constexpr std::size_t max_listed = 100;  // messages

  // Calls f(name, member) for each count but those by kind and by epoch, always in the same order:
  // its name in reports, which programs read, and a pointer to the member.
  template <class F>
  static constexpr void each_count(F&& f) {
    f("delivered", &ledger::delivered);
    f("dropped", &ledger::dropped);
    f("lost", &ledger::lost);
    f("damaged", &ledger::damaged);
    f("lost_bytes", &ledger::lost_bytes);
    f("not_files", &ledger::not_files);
    f("without_key", &ledger::without_key);
    f("meta_files", &ledger::meta_files);
    f("left_out", &ledger::left_out);
    f("without_companion", &ledger::without_companion);
    f("companions_alone", &ledger::companions_alone);
    f("incomplete_shards", &ledger::incomplete_shards);
  }
  // Adds the counts of another run, a later one: its epochs and messages come after these.
  void add(const ledger& later);
  // The sum of `skipped`.
  std::uint64_t skipped_in_all() const {
    std::uint64_t sum = 0;
    for (const auto& [kind, count] : skipped) sum += count;
    return sum;
  }
  // "delivered 4912, skipped 3 (bad_image 2, truncated 1), dropped 8, lost 40".
  std::string summary() const;
  // Equal in all numbers and messages.
  bool operator==(const ledger&) const = default;
};

}  // namespace millrace
