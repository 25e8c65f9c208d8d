#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "pipeline/plan.h"
#include "pipeline/sample_source.h"
#include "pipeline/untar.h"

namespace millrace {

struct key_and_extension {
  std::string key;
  std::string extension;  // lower case
};

// Splits a member name as WebDataset does: at the first dot of the last path component that has one
// character at least before it; the folder belongs to the key. nullopt: the name has no extension,
// and the member is left out.
std::optional<key_and_extension> split_name(std::string_view name);

// The extension, as it is written, of a name that split_name() would give this key.
std::optional<std::string_view> extension_behind(std::string_view key, std::string_view name);

// A sum over the name of a sample's first file, by which an index tells its samples apart.
std::uint16_t name_sum(std::string_view key, std::string_view extension);

// Limits of a sample: names are kept with every sample, and compared.
inline constexpr std::size_t most_fields = 1000;
inline constexpr std::size_t most_name_bytes = 128 << 10;  // key and extensions together

// What group_by_key() saves beside its cursor.
struct group_record {
  bool owes_end = false;  // of the epoch
  seen_before before;     // the sample that comes next

  // Of a state without such a record, what it is at first. Throws `failure` (bad_state).
  static group_record in(const state& from, const std::string& name);
  void put(state& to, const std::string& name) const;
};

// Consecutive members of one shard with equal keys form a sample. Two members with one extension
// (case ignored) are an error (duplicate_field, skippable), and so are more fields or longer names
// than a sample may have (too_large): the sample is left out. A sample that a
// broken shard cuts is left out with the shard's error: never half a sample.
lane_stage<tar_member, sample> group_by_key();

// Tar archives as a format: untar() and group_by_key() for one shard. `had`: the head that a shard
// must still have; null: none.
std::shared_ptr<const sample_source> tar_samples(const untar_options& options = {},
                                                 std::shared_ptr<const shard_head> had = nullptr);

}  // namespace millrace
