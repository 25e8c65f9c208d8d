#include "pipeline/ledger.h"

#include <fmt/format.h>

namespace millrace {

std::string ledger::summary() const {
  std::string kinds;
  for (const auto& [kind, count] : skipped) {
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", kind_name(kind), count);
  }
  std::string out = fmt::format("delivered {}, skipped {}{}, dropped {}", delivered,
                                skipped_in_all(), kinds.empty() ? "" : " (" + kinds + ")", dropped);
  if (damaged > 0) out += fmt::format(", {} damaged images", damaged);
  if (lost > 0) out += fmt::format(", lost {}", lost);
  if (lost_bytes > 0) out += fmt::format(", {} bytes of damaged shards", lost_bytes);
  if (without_key > 0) out += fmt::format(", {} files without an extension", without_key);
  if (not_files > 0) out += fmt::format(", {} links and devices", not_files);
  return out;
}

}  // namespace millrace
