#include "train/ranks/totals.h"

#include <torch/torch.h>

#include <limits>
#include <vector>

namespace millrace {
namespace {

// Calls `visit` with every count, always in the same order.
template <class F>
void each_count(ledger& l, F visit) {
  ledger::each_count([&](auto, std::uint64_t ledger::* count) { visit(l.*count); });
  for (int k = 0; k <= std::numeric_limits<std::uint8_t>::max(); ++k) {
    const auto kind = static_cast<errc>(k);
    const auto found = l.skipped.find(kind);
    std::uint64_t count = found == l.skipped.end() ? 0 : found->second;
    visit(count);
    if (count > 0) l.skipped[kind] = count;
  }
}

}  // namespace

ledger sum_over_ranks(ledger mine, process_group& group) {
  if (group.alone()) return mine;
  std::vector<std::int64_t> values;
  each_count(mine,
             [&](std::uint64_t count) { values.push_back(static_cast<std::int64_t>(count)); });
  auto all = torch::tensor(values, torch::kInt64);
  group.sum(all);
  const auto* next = all.data_ptr<std::int64_t>();
  each_count(mine, [&](std::uint64_t& count) { count = static_cast<std::uint64_t>(*next++); });
  return mine;
}

}  // namespace millrace
