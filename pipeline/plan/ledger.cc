#include "pipeline/plan/ledger.h"

#include <fmt/format.h>

#include "engine/base/words.h"

namespace millrace {
namespace {

// The size of all that each_count() and the lists name: that of the struct, or a count is missing.
constexpr std::size_t named_bytes() {
  std::size_t out = sizeof(decltype(ledger::skipped)) + sizeof(decltype(ledger::epochs)) +
                    sizeof(decltype(ledger::first_skipped));
  ledger::each_count([&](auto, std::uint64_t ledger::*) { out += sizeof(std::uint64_t); });
  return out;
}
static_assert(named_bytes() == sizeof(ledger), "each_count() leaves a count out");

}  // namespace

void ledger::add(const ledger& later) {
  each_count([&](auto, std::uint64_t ledger::* count) { this->*count += later.*count; });
  for (const auto& [kind, count] : later.skipped) skipped[kind] += count;
  epochs.insert(epochs.end(), later.epochs.begin(), later.epochs.end());
  for (const std::string& message : later.first_skipped) {
    if (first_skipped.size() < max_listed) first_skipped.push_back(message);
  }
}

std::string ledger::summary() const {
  std::string kinds;
  for (const auto& [kind, count] : skipped) {
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", kind_name(kind), count);
  }
  std::string out = fmt::format("delivered {}, skipped {}{}, dropped {}", delivered,
                                skipped_in_all(), kinds.empty() ? "" : " (" + kinds + ")", dropped);
  if (damaged > 0) out += ", " + counted(damaged, "damaged image");
  if (lost > 0) out += fmt::format(", lost {}", lost);
  if (incomplete_shards > 0) out += ", " + counted(incomplete_shards, "shard") + " not read whole";
  if (lost_bytes > 0) out += ", " + counted(lost_bytes, "byte") + " of damaged shards";
  if (without_key > 0) out += ", " + counted(without_key, "file") + " without an extension";
  if (meta_files > 0) out += ", " + counted(meta_files, "file") + " named __x__";
  if (not_files > 0) out += ", " + counted(not_files, "link or device", "links and devices");
  if (left_out > 0) out += fmt::format(", left out {}", left_out);
  if (without_companion > 0)
    out += ", " + counted(without_companion, "sample") + " without the fields of a companion";
  if (companions_alone > 0)
    out += ", " + counted(companions_alone, "companion sample") + " without a main one";
  return out;
}

}  // namespace millrace
