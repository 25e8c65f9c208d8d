#include "pipeline/state/dealing.h"

#include <utility>

namespace millrace {

std::vector<std::vector<origin>> dealt(const dealing& what, std::vector<origin> held) {
  std::erase_if(held, [&](const origin& o) { return o.epoch > what.epoch; });
  std::vector<std::vector<origin>> out(static_cast<std::size_t>(what.lanes));
  for (std::size_t i = 0; i < held.size(); ++i) {
    const std::size_t lane = i % out.size();
    held[i].lane = static_cast<std::int64_t>(lane);
    out[lane].push_back(held[i]);
  }
  return out;
}

std::vector<std::vector<origin>> dealt_held(const dealing& what, std::string_view record) {
  std::vector<origin> out;
  for (std::int64_t l = 0; l < what.lanes_before; ++l) {
    const auto& held = what.from.held(lane_record_name(l, record));
    out.insert(out.end(), held.begin(), held.end());
  }
  return dealt(what, std::move(out));
}

}  // namespace millrace
