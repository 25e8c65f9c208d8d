#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/fingerprint.h"
#include "engine/base/result.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// The position of a run: named records of integers, one or more per stage, and the samples that
// stages hold. From loader::save(). Copies cheaply enough to be taken at every batch. Text form:
// versioned, checksummed JSON, about four bytes for each held sample. One thread; example:
// examples/resume.cc.
class state {
 public:
  // Integers, whose meaning is known to the stage that saves them.
  using record = std::vector<std::int64_t>;

  // Sets a record.
  void put(const std::string& name, record values) { records_[name] = std::move(values); }
  // Appends to a record, which need not exist.
  void append(const std::string& name, std::span<const std::int64_t> values);
  // Appends all records and held samples of another state.
  void append(const state& other);
  // The record; nullptr if there is none. Valid until the state changes.
  const record* find(const std::string& name) const;
  // All records by name.
  const std::map<std::string, record>& records() const { return records_; }

  // Appends to the samples that a stage holds, which are read again when it is restored. Stages
  // after the lanes use the name `pending_record`.
  void hold(const std::string& name, std::span<const origin> samples);
  // The samples held under a name, in order; empty if there are none.
  const std::vector<origin>& held(const std::string& name) const;
  // All held samples by name.
  const std::map<std::string, std::vector<origin>>& all_held() const { return held_; }
  // The number of held samples.
  std::size_t samples_held() const;
  // Counts how often a sample is held. `within`: only by stages of the lane whose names begin with
  // it (lane_context::id("")); empty: only by the stages after the lanes. Ignores what the sources
  // of a mix hold, because they number shards separately. The count may exceed 1 if shards are
  // drawn with replacement.
  std::size_t count_held(const origin& sample, std::string_view within) const;
  // The samples held under a name from number `first` on, for changes; valid until the next change
  // of the state.
  std::span<origin> held_from(const std::string& name, std::size_t first);

  // The text form.
  std::string to_json() const;
  // Parses the text form. Fails with bad_state for text that is damaged or of another version, and
  // with too_large if it takes more than `most` bytes of memory; 0: a quarter of the host's, at
  // most 4 GiB.
  static result<state> from_json(std::string_view text, std::size_t most = 0);

  bool operator==(const state&) const = default;

 private:
  std::map<std::string, record> records_;
  std::map<std::string, std::vector<origin>> held_;
};

// The largest number that a state may count to, except for fingerprints and seeds.
inline constexpr std::int64_t most_counted = std::int64_t{1} << 46;

// The record of a mix. The names of what its source N saves begin, within the lane, with this, N,
// and '/'.
inline constexpr const char* mix_record = "mix";

// The name under which stages after the lanes hold samples.
inline constexpr const char* pending_record = "pending";

}  // namespace millrace
