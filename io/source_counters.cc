#include "io/source_counters.h"

#include <algorithm>

namespace millrace {
namespace {

// The size of all that each() and the histograms name: that of the struct, or a figure is missing.
constexpr std::size_t named_bytes() {
  std::size_t out = sizeof(source_counters::reads) + sizeof(source_counters::first_bytes);
  source_counters::each(
      [&]<class T>(std::string_view, T source_counters::*, auto) { out += sizeof(T); });
  return out;
}
static_assert(named_bytes() == sizeof(source_counters), "each() leaves a figure out");

}  // namespace

void source_counters::add(const source_counters& other) {
  each([&](std::string_view, auto figure, total how) {
    auto& mine = this->*figure;
    mine = how == total::sum ? mine + other.*figure : std::max(mine, other.*figure);
  });
  reads.add(other.reads);
  first_bytes.add(other.first_bytes);
}

source_counters source_counters::since(const source_counters& before) const {
  source_counters out = *this;
  each([&](std::string_view, auto figure, total how) {
    if (how == total::sum) out.*figure -= before.*figure;
  });
  out.reads = reads.since(before.reads);
  out.first_bytes = first_bytes.since(before.first_bytes);
  return out;
}

}  // namespace millrace
