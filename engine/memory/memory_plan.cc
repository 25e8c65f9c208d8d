// The division of the budget; declared in engine/memory/memory.h.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/memory/memory.h"

namespace millrace {
namespace {

// A summary of shares and sizes, largest first: names that differ only in numbers, such as those of
// lanes, are merged.
class share_list {
 public:
  void add(std::string_view name, std::size_t size) {
    group& g = groups_[pattern_of(name)];
    if (g.shares++ == 0) g.name = name;
    g.size += size;
  }
  std::string text() const {
    constexpr std::size_t most_listed = 8;
    std::vector<std::pair<std::string, group>> all(groups_.begin(), groups_.end());
    std::ranges::sort(all, std::less(), [](const auto& g) {
      return std::pair(std::numeric_limits<std::size_t>::max() - g.second.size, g.first);
    });
    std::string out;
    for (const auto& [pattern, g] : std::span(all).first(std::min(all.size(), most_listed))) {
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", g.shares == 1 ? g.name : pattern,
                         format_bytes(g.size));
      if (g.shares > 1) out += fmt::format(" in {} shares", g.shares);
    }
    if (all.size() > most_listed) out += ", and others";
    return out;
  }

 private:
  struct group {
    std::string name;  // of the first
    std::size_t shares = 0;
    std::size_t size = 0;
  };
  // Each number as a '*'.
  static std::string pattern_of(std::string_view name) {
    std::string out;
    for (const char c : name) {
      const bool is_digit = c >= '0' && c <= '9';
      if (!is_digit) out += c;
      if (is_digit && !out.ends_with('*')) out += '*';
    }
    return out;
  }

  std::map<std::string, group> groups_;
};

}  // namespace

std::shared_ptr<memory_share> memory_plan::share(std::string name, std::size_t least,
                                                 std::size_t most, host_allocator& allocator) {
  // Sizes that users give: the sum of all must not wrap.
  constexpr std::size_t absurd = std::size_t{1} << 44;
  least = std::min(least, absurd);
  auto made = std::make_shared<memory_share>(std::move(name), least, allocator);
  claims_.push_back({made, least, std::clamp(most, least, absurd)});
  return made;
}

void memory_plan::take_rest(const std::shared_ptr<memory_share>& share) {
  std::ranges::find(claims_, share, &claim::share)->takes_rest = true;
}

result<void> memory_plan::divide() {
  std::size_t least = 0;
  std::size_t wanted = 0;
  for (const claim& c : claims_) {
    least += c.least;
    wanted += c.most - c.least;
  }
  if (least > budget_) {
    share_list parts;
    for (const claim& c : claims_) {
      if (c.least > 0) parts.add(c.share->name(), c.least);
    }
    return error(errc::no_memory,
                 fmt::format("the plan needs {} ({}), the budget is {}", format_bytes(least),
                             parts.text(), format_bytes(budget_)))
        .hint(fmt::format("set engine_options.memory_bytes to {0}_MiB or more "
                          "(MILLRACE_MEMORY={0}M), or lower the batch size, the read "
                          "extent or the number of lanes",
                          (least + 1_MiB - 1) / 1_MiB));
  }
  const std::size_t spare = std::min(budget_ - least, wanted);
  const auto takers = std::ranges::count_if(claims_, &claim::takes_rest);
  const std::size_t rest =
      takers == 0 ? 0 : (budget_ - least - spare) / static_cast<std::size_t>(takers);
  for (const claim& c : claims_) {
    const auto part = wanted == 0 ? 0.0
                                  : static_cast<double>(c.most - c.least) *
                                        static_cast<double>(spare) / static_cast<double>(wanted);
    c.share->set_limit(c.least + static_cast<std::size_t>(part) + (c.takes_rest ? rest : 0));
  }
  for (const auto& what : when_divided_) what();
  return {};
}

std::string memory_plan::starved() {
  share_list out;
  for (const claim& c : claims_) {
    if (c.share->is_starved()) out.add(c.share->name(), c.share->limit());
  }
  return out.text();
}

}  // namespace millrace
