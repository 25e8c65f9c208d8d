#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/fingerprint.h"
#include "pipeline/state/lane_cursor.h"

namespace millrace {

// Where the samples of a companion shard begin, by key, as far as it has been read. Of several
// samples with one key the first one counts. One thread.
class companion_index {
 public:
  // The memory that a sample takes here, in bytes.
  static constexpr std::size_t bytes_of_one = 64;

  // The byte at which the sample of `key` begins; nullopt: not read so far, or none.
  std::optional<std::int64_t> find(std::string_view key) const;
  // Adds a sample. False if another one with this key came before, which is counted.
  bool add(std::string_view key, std::int64_t offset);
  // Counts that the main shard has a sample of `key`.
  void note_asked(std::string_view key);

  // Samples that are in the index.
  std::size_t size() const { return places_.size(); }
  // Samples read so far that no sample of the main shard has asked for, and repetitions of keys.
  std::size_t not_asked() const { return places_.size() - asked_ + repeated_; }
  std::size_t repeated() const { return repeated_; }

  std::int64_t reached = 0;      // the byte before which every sample is in the index
  seen_before before;            // what was seen before that byte
  bool is_complete = false;      // the shard was read to its end, or to where it is broken
  std::optional<error> broken;   // why it gives nothing after that; nullopt: it ends there
  std::optional<error> damaged;  // the first error of a sample within it

 private:
  struct place {
    std::int64_t offset = 0;
    bool is_asked = false;
  };
  static std::uint64_t random_seed();
  std::uint64_t of_key(std::string_view key) const { return fingerprint(key, seed_); }

  // Of this process and index alone: nobody can write keys whose fingerprints are equal.
  std::uint64_t seed_ = random_seed();
  std::unordered_map<std::uint64_t, place> places_;  // by the key's fingerprint
  std::size_t asked_ = 0;
  std::size_t repeated_ = 0;
};

// The indexes of the companion shards that a lane has read last, for its samples that are read
// again. Bounded in samples. One thread.
class companion_indexes {
 public:
  // The index of a shard, as it was left; an empty one if it is not kept, if reading ended in an
  // error, or with `afresh`.
  std::shared_ptr<companion_index> of(const std::string& url, bool afresh);
  // Makes room for one more sample in the index used last, by dropping others. False if there is
  // none among `most` samples.
  bool make_room(std::size_t most);

 private:
  static constexpr std::size_t most_kept = 16;
  std::list<std::pair<std::string, std::shared_ptr<companion_index>>> kept_;  // the latest first
};

}  // namespace millrace
