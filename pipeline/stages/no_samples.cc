#include "pipeline/stages/no_samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/words.h"

namespace millrace {
namespace {

// `what` of the shards of this rank, with their number; located at the first of them.
error of_shards(std::span<const lane> lanes, const shard_list_options& o, errc kind,
                std::string_view what) {
  std::size_t all = 0;
  const std::string* first = nullptr;
  for (const lane& l : lanes) {
    if (!l.context->shards) continue;  // of a mix
    for (const shard_ref& ref :
         epoch_order(*l.context->shards, o, o.first_epoch).lane(l.context->lane)) {
      if (all++ == 0) first = &(*l.context->shards)[static_cast<std::size_t>(ref.shard)];
    }
  }
  if (first == nullptr) return {kind, fmt::format("{} the shards{}", what, of_this_rank(o))};
  if (all == 1) return error(kind, fmt::format("{} the shard", what)).at(*first);
  return error(kind, fmt::format("{} the {} shards{}; the first is named here", what, all,
                                 of_this_rank(o)))
      .at(*first);
}

}  // namespace

std::string of_this_rank(const shard_list_options& options) {
  return options.world_size > 1 ? " of this rank" : "";
}

error no_samples(std::span<const lane> lanes, const shard_list_options& options,
                 const std::optional<error>& first) {
  std::int64_t failed = 0;
  for (const lane& l : lanes) failed += l.failed;
  if (!first && failed > 0) {
    return of_shards(lanes, options, errc::no_samples,
                     fmt::format("the saved state counts {}, and no sample is in",
                                 counted(static_cast<std::uint64_t>(failed), "error")))
        .hint("start the epoch without the state");
  }
  const bool any_read = std::ranges::any_of(lanes, [](const lane& l) {
    const auto has_items = [](const auto& part) { return part.lane->drawn->items > 0; };
    return l.context->drawn->items > 0 || std::ranges::any_of(l.context->parts, has_items);
  });
  if (!first && any_read) {
    return of_shards(lanes, options, errc::no_samples,
                     "the stages of the lanes dropped every sample of")
        .hint("check what they select");
  }
  if (!first) {
    return of_shards(lanes, options, errc::no_samples, "no sample is in")
        .hint(
            "check that members are named KEY.EXTENSION, that no function deselects them or "
            "their shards, and that there are shards for every rank");
  }
  error none =
      of_shards(lanes, options, first->kind(),
                fmt::format("the first error is '{}', and no sample came from", first->message()));
  return none.where().empty() ? none.at(first->where()) : none;
}

}  // namespace millrace
