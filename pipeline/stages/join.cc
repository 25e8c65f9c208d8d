#include "pipeline/stages/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "pipeline/formats/companion.h"
#include "pipeline/formats/joined_source.h"

namespace millrace {
namespace {

bool has_no_name(const std::string& shard) {
  return shard == "-" || shard.starts_with("pipe:");
}

void check_can_join(const lane_plan<sample>& front) {
  detail::check_not_empty(front.make && front.shards);
  if (!front.traits.is_joinable) {
    throw failure(error(errc::usage, "join() after a stage that it may not follow")
                      .hint("place it right after group_by_key() or read_samples(), or another "
                            "join(); window_shuffle() cannot be joined"));
  }
  const auto nameless = std::ranges::find_if(*front.shards, has_no_name);
  if (nameless == front.shards->end()) return;
  throw failure(error(errc::usage, "join() with shards that have no names")
                    .at(*nameless)
                    .hint("name shards by paths or URLs"));
}

error without_row(const sample& s) {
  return of_sample(s, error(errc::missing_field, "the table has no row of this key")
                          .hint("keys are the names up to the first dot, with folders; `missing` "
                                "leaves such samples out, or gives them without the fields"));
}

}  // namespace

join_stage join(std::string pattern, const join_options& options) {
  if (pattern.starts_with("pipe:")) {
    throw failure(
        error(errc::usage, "join() with a pipe:").hint("name companion shards by paths or URLs"));
  }
  if (pattern.find("{}") == pattern.npos) {
    throw failure(
        error(errc::usage, "join() with a pattern without {}: '" + redacted(pattern) + "'")
            .hint("{} stands for the name of the main shard: \"captions/{}.tar\""));
  }
  return {std::move(pattern), options};
}

lane_plan<sample> operator|(lane_plan<sample> front, const join_stage& back) {
  check_can_join(front);
  const std::string first =
      front.shards->empty() ? "" : companion_url(back.pattern, front.shards->front());
  lane_traits& traits = front.traits;
  traits.format = joined_samples(
      traits.format, {.pattern = back.pattern, .options = back.options, .number = traits.joins++});
  traits.leaves_samples_out |= back.options.missing == missing_companion::skip;
  front.make = [make = std::move(front.make), first, options = back.options](lane_context& lane) {
    auto samples = make(lane);
    lane.memory.companions.push_back(companion_memory::claimed(lane, options, first));
    return samples;
  };
  return front;
}

sample_stage join_table(std::shared_ptr<const field_table> table, missing_companion missing) {
  if (!table) {
    throw failure(
        error(errc::usage, "join_table() without a table").hint("give one, which may be empty"));
  }
  const auto what = [table, missing](sample s) -> result<std::optional<sample>> {
    const auto row = table->find(s.key);
    if (row == table->end()) {
      if (missing == missing_companion::error) return without_row(s);
      if (missing == missing_companion::skip) return std::optional<sample>();
      return std::optional(std::move(s));
    }
    if (auto added = add_fields(s, row->second); !added) {
      error why = added.error();
      why.reworded("with the columns of the table, " + why.what());
      return of_sample(s, why.hint("rename or leave out columns"));
    }
    return std::optional(std::move(s));
  };
  const bool keeps_all = missing != missing_companion::skip;
  if (missing == missing_companion::error) {
    return {.name = "join_table", .what = what, .keeps_all = keeps_all};
  }
  const auto note = [table, missing, has_told = false](run_context& run, const sample& s) mutable {
    if (table->contains(s.key)) return;
    count_without_companion(run.counts, missing);
    if (std::exchange(has_told, true)) return;
    report_companions(run, fmt::format("the table has no row for {} of {}: such samples are {}",
                                       s.key, s.url ? redacted(*s.url) : "", became(missing)));
  };
  return {.name = "join_table", .what = what, .note = note, .keeps_all = keeps_all};
}

}  // namespace millrace
