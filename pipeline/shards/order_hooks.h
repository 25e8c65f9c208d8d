#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Overrides of the usual order of shards. Pure functions, the same on every rank. An exception of
// one ends the run, whether or not it is skippable.
struct order_hooks {
  // The seed of an epoch, instead of shard_list_options::seed.
  std::function<std::uint64_t(std::int64_t epoch)> seed = nullptr;
  // Selects the shards that an epoch reads: true keeps one. With epoch_mode::resample: the shards
  // to draw from, in the only epoch, `first_epoch`.
  std::function<bool(std::string_view url, std::int64_t epoch)> select = nullptr;
  // The order of the list in an epoch, instead of the seeded permutation: rearranges `shards`, the
  // numbers of the selected ones; each must stay in it, once. Not with epoch_mode::resample, which
  // has no order.
  std::function<void(std::int64_t epoch, std::vector<std::int64_t>& shards)> arrange = nullptr;
  // Returns the rank that reads a lane, in place of lane mod world_size: in [0, world_size), and in
  // the equal modes as many lanes for each rank.
  std::function<int(std::int64_t lane)> rank = nullptr;
};

// The seed by hooks.seed, or `usual` without one. What a hook throws is thrown as a `failure` that
// is not skippable: without an order the run cannot continue. So for the other functions.
std::uint64_t seed_by(const order_hooks& hooks, std::int64_t epoch, std::uint64_t usual);
// The numbers of the shards that an epoch is made of.
std::vector<std::int64_t> selected_by(const order_hooks& hooks, std::int64_t epoch,
                                      const std::vector<std::string>& urls);
// Puts shards into the order of hooks.arrange. Throws `failure` (usage) if they are others
// afterwards.
void arrange_by(const order_hooks& hooks, std::int64_t epoch, std::size_t shards_in_all,
                std::vector<std::int64_t>& shards);
// Throws `failure` (usage) if hooks.rank gives a lane to a rank outside [0, world_size) or, with
// `as_many_each`, some ranks more lanes than others.
void check_ranks(const order_hooks& hooks, int lanes, int world_size, bool as_many_each);

}  // namespace millrace
