#include "pipeline/plan/run_context.h"

#include <algorithm>
#include <iterator>

#include "engine/base/units.h"

namespace millrace {

error run_stopped() {
  return {errc::stopped, "the run was stopped"};
}

std::uint64_t drawn_shards::passes() const {
  if (of_parts.empty()) return shards / shards_of_a_pass;
  std::uint64_t least = of_parts.front()->passes();
  for (const auto& part : of_parts) least = std::min(least, part->passes());
  return least;
}

std::string run_context::record_of(std::string_view stage) {
  std::string name(stage);
  const int number = ++stages_of_a_kind[name];
  if (number > 1) name += ' ' + std::to_string(number);
  return name;
}

std::shared_ptr<work_memory> run_context::memory_for_decoding() {
  if (decoding != nullptr) return decoding;
  // The least memory of a plan must not grow with the budget, or the amount that the error asks
  // for would never be enough.
  constexpr std::size_t least = 1_MiB;
  const std::size_t most = std::clamp<std::size_t>(memory.budget() / 8, least, 512_MiB);
  decoding = std::make_shared<work_memory>(least);
  memory.when_divided([to = decoding, share = memory.share("decoding", least, most)] {
    to->set_limit(share->limit());
  });
  return decoding;
}

run_context::stage_figures& run_context::figures(const std::string& name) {
  const auto at = std::ranges::find_if(stages, [&](const auto& s) { return s->name == name; });
  if (at != stages.end()) return **at;
  return *stages.emplace_back(std::make_unique<stage_figures>(stage_figures{.name = name}));
}

std::int64_t source_epochs::in(std::int64_t of_mix) const {
  std::int64_t out = first + of_mix - first_of_mix;
  for (const auto& [from, to] : unfinished) out -= std::clamp(of_mix, from, to) - from;
  return out;
}

void source_epochs::goes_on_after(std::int64_t of_mix) {
  if (unfinished.empty() || unfinished.back().second != of_mix) {
    unfinished.emplace_back(of_mix, of_mix);
  }
  ++unfinished.back().second;
}

void lane_context::restore(const state& from) {
  head = shard_head::in(from, id(shard_head::record));
  for (const part& p : parts) p.lane->restore(from);
}

const lane_context::part* lane_context::part_of(std::int64_t shard) const {
  const auto after = std::ranges::upper_bound(parts, shard, {}, &part::first_shard);
  return after == parts.begin() ? nullptr : &*std::prev(after);
}

const lane_context& lane_context::reader_of(std::int64_t shard) const {
  const part* const of = part_of(shard);
  return of == nullptr ? *this : of->lane->reader_of(shard - of->first_shard);
}

std::string lane_context::id(std::string_view stage) const {
  return lane_record_name(lane, within + std::string(stage));
}

source_context lane_context::source() const {
  const source_options& options = memory.reads == memory.again ? run.source_again : run.source;
  return {run.threads, run.io, run.tasks, memory.reads, options, run.counters};
}

lane_context lane_context::reading_again(spare_memory* beside) const {
  lane_context out = *this;
  out.memory.reads = memory.again;
  out.memory.spare = beside;
  return out;
}

}  // namespace millrace
