#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/fingerprint.h"
#include "engine/result.h"
#include "pipeline/sample.h"

namespace millrace {

// The position of a run: records of integers by name, one or more per stage, and the samples that
// stages hold. Copies cheaply enough to be taken at every batch. Text form: versioned, checksummed
// JSON, of about four bytes for a sample that is held.
class state {
 public:
  using record = std::vector<std::int64_t>;

  void put(const std::string& name, record values) { records_[name] = std::move(values); }
  void append(const std::string& name, std::span<const std::int64_t> values);
  // Adds all records of another state.
  void append(const state& other);
  // nullptr where there is none.
  const record* find(const std::string& name) const;
  const std::map<std::string, record>& records() const { return records_; }

  // Appends to the samples that a stage holds, which are read again when it is restored.
  void hold(const std::string& name, std::span<const origin> samples);
  const std::vector<origin>& held(const std::string& name) const;  // empty where there are none
  const std::map<std::string, std::vector<origin>>& all_held() const { return held_; }
  std::size_t samples_held() const;
  // How often it is held by stages that number shards as those of the lane do whose names begin
  // with `within` (lane_context::id("")); empty: as those behind the lanes. The sources of a mix
  // number theirs on their own: what they hold is not looked at. More than once where shards are
  // drawn with replacement.
  std::size_t count_held(const origin& sample, std::string_view within) const;
  // The records of a name from the `first` on, for changes; valid until the next change of the
  // state.
  std::span<origin> held_from(const std::string& name, std::size_t first);

  std::string to_json() const;
  // Fails with bad_state for text that is damaged or of another version, and with too_large for
  // what takes more than `most` bytes of memory; 0: a quarter of the host's, 4 GiB at most.
  static result<state> from_json(std::string_view text, std::size_t most = 0);

  bool operator==(const state&) const = default;

 private:
  std::map<std::string, record> records_;
  std::map<std::string, std::vector<origin>> held_;
};

// The most that a number of a state may count to, unless it is a fingerprint or a seed.
inline constexpr std::int64_t most_counted = std::int64_t{1} << 46;

// The record that tells a mix apart. The names of what its source of a number saves begin, within
// the lane, with this, the number, and '/'.
inline constexpr const char* mix_record = "mix";

// The name under which stages after the lanes hold samples.
inline constexpr const char* pending_record = "pending";

}  // namespace millrace
