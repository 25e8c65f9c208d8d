#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  // nullptr where there is none.
  // All that another one says.
  void append(const state& other);
  const record* find(const std::string& name) const;
  const std::map<std::string, record>& records() const { return records_; }

  // Appends to the samples that a stage holds, which are read again when it is restored.
  void hold(const std::string& name, std::span<const origin> samples);
  const std::vector<origin>& held(const std::string& name) const;  // empty where there are none
  const std::map<std::string, std::vector<origin>>& all_held() const { return held_; }

  std::string to_json() const;
  // Fails with bad_state for text that is damaged or of another version.
  static result<state> from_json(std::string_view text);

  bool operator==(const state&) const = default;

 private:
  std::map<std::string, record> records_;
  std::map<std::string, std::vector<origin>> held_;
};

// A stable 64-bit fingerprint (FNV-1a), for telling plans apart.
std::uint64_t fingerprint(std::string_view text, std::uint64_t so_far = 0xcbf29ce484222325U);

}  // namespace millrace
