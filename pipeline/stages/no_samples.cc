#include "pipeline/stages/no_samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/words.h"

namespace millrace {
namespace {

// The shards of this rank in its first epoch.
struct shards_of_rank {
  std::size_t count = 0;               // 0: unknown, as in a mix
  const std::string* first = nullptr;  // null: unknown

  shards_of_rank(std::span<const lane> lanes, const shard_list_options& o) {
    for (const lane& l : lanes) {
      if (!l.context->shards) continue;  // of a mix
      for (const shard_ref& ref :
           epoch_order(*l.context->shards, o, o.first_epoch).lane(l.context->lane)) {
        if (count++ == 0) first = &(*l.context->shards)[static_cast<std::size_t>(ref.shard)];
      }
    }
  }
};

// `what` of the shards of this rank, with their number; located at the first of them.
error of_shards(std::span<const lane> lanes, const shard_list_options& o, errc kind,
                std::string_view what) {
  const shards_of_rank all(lanes, o);
  if (all.first == nullptr) return {kind, fmt::format("{} the shards{}", what, of_this_rank(o))};
  if (all.count == 1) return error(kind, fmt::format("{} the shard", what)).at(*all.first);
  return error(kind, fmt::format("{} the {} shards{}; the first is named here", what, all.count,
                                 of_this_rank(o)))
      .at(*all.first);
}

// `first` as the error of them all. It has the place, the cause and the hint of that one.
error none_because_of(const error& first, std::span<const lane> lanes,
                      const shard_list_options& o) {
  const shards_of_rank all(lanes, o);
  const bool is_read = !first.is_of_whole_shard();
  std::string what;
  if (all.count == 1) {
    what = is_read ? "no sample came from the shard: " : "the shard could not be read: ";
  } else {
    what = fmt::format("none of the {}shards{} {}; the first error: ",
                       all.count > 1 ? fmt::format("{} ", all.count) : "", of_this_rank(o),
                       is_read ? "gave a sample" : "could be read");
  }
  error none = first;
  none.reworded(what + first.what()).retryable(false).skippable(false);
  return none.where().empty() && all.first != nullptr ? none.at(*all.first) : none;
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
  return none_because_of(*first, lanes, options);
}

}  // namespace millrace
