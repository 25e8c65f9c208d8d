#include "spec.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "errors.h"

namespace millrace::python {
namespace {

bool names_index(const std::vector<std::string>& shards) {
  return shards.size() == 1 && shards.front().ends_with(".json");
}

// The enumerator of this name; nullopt: there is none.
template <class E>
std::optional<E> named(const auto& names, std::string_view name) {
  const auto at = std::ranges::find(names, name);
  if (at == names.end()) return std::nullopt;
  return static_cast<E>(at - names.begin());
}

}  // namespace

epoch_mode mode_of(const std::string& name) {
  if (const auto mode = named<epoch_mode>(epoch_mode_names, name)) return *mode;
  throw failure(error(errc::usage, "epoch is '" + name + "'")
                    .hint("give 'exact', 'equal', 'equal_repeating' or 'resample'"));
}

augment_policy policy_of(const std::string& name) {
  if (const auto policy = named<augment_policy>(augment_policy_names, name)) return *policy;
  throw failure(error(errc::usage, "policy is '" + name + "'")
                    .hint("give 'none', 'autoaugment', 'randaugment' or 'trivialaugment'"));
}

engine_options engine_of(const spec& of) {
  engine_options out = engine_options::from_environment();
  if (of.threads > 0) out.cpu_threads = of.threads;
  if (of.memory > 0) out.memory_bytes = of.memory;
  if (!of.cache_folder.empty()) out.source.cache.folder = of.cache_folder;
  if (of.allow_pipe) out.source.allow_pipe = true;
  out.in_words = words_of;
  return out;
}

found_shards find(engine& eng, const spec& of) {
  found_shards out;
  if (names_index(of.shards)) {
    auto index = std::make_shared<shard_index>(read_index(eng, of.shards.front()));
    auto urls = std::make_shared<std::vector<std::string>>();
    for (const shard_index::shard& s : index->shards) urls->push_back(s.url);
    out.urls = std::move(urls);
    out.index = std::move(index);
    return out;
  }
  out.urls = std::make_shared<std::vector<std::string>>(
      find_shards(of.shards, "", eng.options().source).value());
  return out;
}

shard_list_options list_of(const spec& of, const found_shards& found) {
  constexpr std::int64_t endless = std::numeric_limits<std::int32_t>::max();
  return {.seed = of.seed,
          .rank = of.rank,
          .world_size = of.world_size,
          .lanes = of.lanes,
          .mode = mode_of(of.epoch),
          .shuffle = of.shuffle_shards,
          .epochs = endless,
          .first_epoch = of.first_epoch,
          .index = found.index};
}

lane_plan<sample> samples_of(const spec& of, const found_shards& found) {
  auto out =
      shards(*found.urls, list_of(of, found)) | untar({.resync = of.resync}) | group_by_key();
  for (const join_stage& companions : of.joins) out = out | companions;
  for (const auto& [table, missing] : of.tables) out = out | join_table(table, missing);
  if (!of.fields.empty()) out = out | keep_fields(of.fields);
  if (of.shuffle > 0)
    out = out | shuffle({.samples = of.shuffle, .seed = of.shuffle_seed.value_or(of.seed)});
  return out;
}

std::int64_t samples_in_epoch(const spec& of, const found_shards& found, std::int64_t epoch) {
  if (of.epoch_length > 0) return of.epoch_length;
  if (!found.index || of.epoch == "resample") return -1;
  const shard_list_options list = list_of(of, found);
  const epoch_order order(*found.urls, list, epoch);
  std::int64_t sum = 0;
  for (std::int64_t lane = 0; lane < list.lane_count(); ++lane) {
    if (list.rank_of(lane) != of.rank) continue;
    for (const shard_ref& part : order.lane(lane)) {
      const auto shard = static_cast<std::size_t>(part.shard);
      sum += part.samples < 0 ? found.index->shards[shard].samples : part.samples;
    }
  }
  return sum;
}

}  // namespace millrace::python
