#include "pipeline/shards/order_hooks.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/words.h"

namespace millrace {
namespace {

template <class F>
auto called_hook(const char* name, F f) {
  try {
    return f();
  } catch (...) {
    throw failure(error_of(std::current_exception(), name).skippable(false));
  }
}

}  // namespace

std::uint64_t seed_by(const order_hooks& hooks, std::int64_t epoch, std::uint64_t usual) {
  if (!hooks.seed) return usual;
  return called_hook("order_hooks.seed", [&] { return hooks.seed(epoch); });
}

std::vector<std::int64_t> selected_by(const order_hooks& hooks, std::int64_t epoch,
                                      const std::vector<std::string>& urls) {
  std::vector<std::int64_t> out(urls.size());
  std::iota(out.begin(), out.end(), 0);
  if (!hooks.select) return out;
  called_hook("order_hooks.select", [&] {
    std::erase_if(out, [&](std::int64_t s) {
      return !hooks.select(urls[static_cast<std::size_t>(s)], epoch);
    });
  });
  return out;
}

void arrange_by(const order_hooks& hooks, std::int64_t epoch, std::size_t shards_in_all,
                std::vector<std::int64_t>& shards) {
  std::vector<bool> is_left(shards_in_all);
  for (const std::int64_t s : shards) is_left[static_cast<std::size_t>(s)] = true;
  const std::size_t before = shards.size();
  called_hook("order_hooks.arrange", [&] { hooks.arrange(epoch, shards); });
  const auto refuse = [epoch](const std::string& what) {
    throw failure(error(errc::usage, fmt::format("order_hooks.arrange, epoch {}: {}", epoch, what))
                      .hint("change only the order; order_hooks.select leaves shards out"));
  };
  for (const std::int64_t s : shards) {
    const bool is_there = s >= 0 && static_cast<std::size_t>(s) < shards_in_all;
    if (!is_there) refuse(fmt::format("there is no shard {} in a list of {}", s, shards_in_all));
    if (!is_left[static_cast<std::size_t>(s)]) {
      refuse(fmt::format("shard {} appears twice, or was not selected", s));
    }
    is_left[static_cast<std::size_t>(s)] = false;
  }
  if (shards.size() < before) {
    refuse(fmt::format("{} of {} are left out", before - shards.size(), counted(before, "shard")));
  }
}

void check_ranks(const order_hooks& hooks, int lanes, int world_size, bool as_many_each) {
  std::vector<std::uint64_t> lanes_of(static_cast<std::size_t>(world_size));
  for (int lane = 0; lane < lanes; ++lane) {
    const int rank = called_hook("order_hooks.rank", [&] { return hooks.rank(lane); });
    if (rank < 0 || rank >= world_size) {
      throw failure(
          error(
              errc::usage,
              fmt::format("order_hooks.rank gives lane {} to rank {} of {}: no rank would read it",
                          lane, rank, world_size))
              .hint(fmt::format("give every lane a rank from 0 to {}", world_size - 1)));
    }
    ++lanes_of[static_cast<std::size_t>(rank)];
  }
  const auto [least, most] = std::ranges::minmax(lanes_of);
  if (!as_many_each || least == most) return;
  throw failure(
      error(errc::usage, fmt::format("order_hooks.rank gives {} to one rank and {} to another, but "
                                     "equal epochs need the same number on every rank",
                                     counted(least, "lane"), most))
          .hint("give each rank the same number of lanes"));
}

}  // namespace millrace
