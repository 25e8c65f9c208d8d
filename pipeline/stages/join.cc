#include "pipeline/stages/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/error.h"
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
  traits.joined = joined_samples(
      traits.format, {.pattern = back.pattern, .options = back.options, .number = traits.joins++});
  traits.format = traits.joined;
  front.make = [make = std::move(front.make), first, options = back.options](lane_context& lane) {
    auto samples = make(lane);
    lane.companions.push_back(companion_memory::claimed(lane, options, first));
    return samples;
  };
  return front;
}

sample_stage join_table(std::shared_ptr<const field_table> table, missing_companion missing) {
  if (!table) {
    throw failure(
        error(errc::usage, "join_table() without a table").hint("give one, which may be empty"));
  }
  const auto what = [table = std::move(table), missing](sample s) -> result<std::optional<sample>> {
    const auto row = table->find(s.key);
    if (row == table->end()) {
      if (missing == missing_companion::error) return without_row(s);
      if (missing == missing_companion::skip) return std::optional<sample>();
      return std::optional(std::move(s));
    }
    for (const field& f : row->second) {
      if (s.find(f.extension) != nullptr) {
        return of_sample(s, error(errc::duplicate_field,
                                  fmt::format("the table has a column '{}', and the sample a field "
                                              "of that name",
                                              f.extension))
                                .hint("rename or leave out the column"));
      }
      s.fields.push_back(f);
    }
    return std::optional(std::move(s));
  };
  return {"join_table", what};
}

}  // namespace millrace
