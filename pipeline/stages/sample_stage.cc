#include "pipeline/stages/sample_stage.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "engine/base/words.h"
#include "pipeline/plan/run_context.h"
#include "pipeline/stages/map.h"

namespace millrace {
namespace {

// Makes `what` fail once it has dropped all samples of shards that are drawn forever.
sample_function not_in_vain(sample_function what, std::shared_ptr<const drawn_shards> drawn) {
  return [what = std::move(what), drawn = std::move(drawn), dropped = std::uint64_t{0},
          since = std::uint64_t{0}](sample s) mutable -> result<std::optional<sample>> {
    auto made = what(std::move(s));
    const bool is_dropped = made && !*made;
    if (!is_dropped) dropped = 0;
    if (!is_dropped || !drawn->is_endless()) return made;
    if (dropped++ == 0) since = drawn->passes();
    // The first of these may have been dropped in the middle of a pass.
    if (drawn->passes() < since + 2) return made;
    return error(errc::no_samples, fmt::format("a stage dropped {} in a row, from all shards",
                                               counted(std::exchange(dropped, 0), "sample")))
        .hint("check what the stage selects: shards are drawn forever");
  };
}

sample_function noted(const sample_stage& by, run_context& run) {
  if (!by.note) return by.what;
  return [by, &run](sample s) {
    by.note(run, s);
    return by.what(std::move(s));
  };
}

std::unique_ptr<stream<sample>> applied(std::unique_ptr<stream<sample>> samples,
                                        const sample_stage& by, run_context& run,
                                        std::shared_ptr<const drawn_shards> drawn) {
  return std::make_unique<detail::direct_map<sample, sample>>(
      std::move(samples), not_in_vain(noted(by, run), std::move(drawn)));
}

}  // namespace

lane_plan<sample> operator|(lane_plan<sample> front, sample_stage back) {
  front.traits.sample_stages.push_back(back.what);
  front.traits.leaves_samples_out |= !back.keeps_all;
  const std::string name = back.name;
  auto make = [by = std::move(back)](lane_context& lane, auto samples) {
    return applied(std::move(samples), by, lane.run, lane.drawn);
  };
  return std::move(front) |
         lane_stage<sample, sample>{.name = name, .wrap = std::move(make), .unchanged = true};
}

plan<sample> operator|(plan<sample> front, sample_stage back) {
  const std::string name = back.name;
  auto make = [by = std::move(back)](run_context& run, auto samples) {
    return applied(std::move(samples), by, run, run.place.drawn);
  };
  return std::move(front) | stage<sample, sample>{name, std::move(make)};
}

}  // namespace millrace
