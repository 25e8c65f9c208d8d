#include "pipeline/ledger.h"

#include <fmt/format.h>

namespace millrace {

std::string ledger::summary() const {
  std::string kinds;
  for (const auto& [kind, count] : skipped) {
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", kind_name(kind), count);
  }
  return fmt::format("delivered {}, skipped {}{}, dropped {}", delivered, skipped_in_all(),
                     kinds.empty() ? "" : " (" + kinds + ")", dropped);
}

}  // namespace millrace
