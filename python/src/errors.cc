#include "errors.h"

#include <millrace/error.h>
#include <millrace/images.h>
#include <millrace/options.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "python/binding/raised.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

// The arguments of the package by the options that they set.
constexpr auto arguments = std::to_array<option_flag>({
    {"engine_options.memory_bytes", "memory"},
    {"engine_options.cpu_threads", "threads"},
    {"batch_options.size", "batch_size"},
    {"(batch_options.held; prefetch(n) makes room for n more)",
     "(held; prefetch=n makes room for n more)"},
    {"batch_options.held", "held"},
    {"decode_options.size", "size"},
    {"decode_options.resize", "resize"},
    {"decode_options.label", "label"},
    {"decode_options.classes", "classes"},
    {"decode_options.images", "images"},
    {"crop_options.flip", "flip"},
    {"crop_options.least_area", "least_area"},
    {"color_jitter.brightness", "brightness"},
    {"color_jitter.contrast", "contrast"},
    {"color_jitter.saturation", "saturation"},
    {"color_jitter.hue", "hue"},
    {"color_jitter.probability", "jitter"},
    {"augment_options.randaugment_ops", "ops"},
    {"augment_options.randaugment_magnitude", "magnitude"},
    {"cache_options.folder, MILLRACE_CACHE", "cache, or MILLRACE_CACHE"},
    {"cache_options.folder (MILLRACE_CACHE)", "cache (or MILLRACE_CACHE)"},
    {"join_options.missing", "missing"},
    {"join_options.fields", "fields"},
    {"join_options.held_bytes", "the companion's memory"},
    {"shuffle_options.samples", "shuffle"},
    {"shard_list_options.world_size", "the number of ranks"},
    {"shard_list_options.first_epoch", "epoch"},
    {", or keep them on disk (decoded_cache_options.folder)", ""},
    {"decoded_cache_options.bytes", "cache_decoded"},
    {", or rename them in the companion (join_options.untar.rename)", ""},
    {"log_level::debug", "MILLRACE_LOG=debug"},
    {"set source_options.allow_pipe (MILLRACE_ALLOW_PIPE=1)", "give allow_pipe=True"},
    {"set shard_writer_options.overwrite", "give overwrite=True"},
    {"shard_list_options.lanes", "lanes"},
    {"pass its index", "give that index, a .json, in the place of the shards"},
    {"shard_writer_options.most_count", "max_count"},
    {"shard_writer_options.most_bytes", "max_size"},
    {"shard_writer_options.first_shard", "start_shard"},
});

// The hint for a state that is not of the loader's arguments.
constexpr std::string_view same_arguments =
    "load it into a loader with the arguments of the one that saved it, or begin without it";

// What the engine says of a state, in which plans, stages and records are what Python knows as a
// loader and its arguments.
constexpr auto states = std::to_array<option_flag>({
    {"the saved state belongs to another plan: its epoch was begun with another index",
     "the state was saved with another index of the shards"},
    {"the saved state belongs to another plan: the list of shards or its index differs",
     "the state was saved with other shards, or with another index of them"},
    {"the saved state belongs to another plan: the seed differs",
     "the state was saved with another seed"},
    {"the saved state belongs to another plan: the number of lanes differs",
     "the state was saved with other lanes"},
    {"the saved state belongs to another plan: the epoch mode differs",
     "the state was saved with another mode of epochs (epoch)"},
    {"the saved state belongs to another plan: the shuffling of shards differs",
     "the state was saved with another train (of samples(): shuffle_shards)"},
    {"the saved state belongs to another plan: it has no record of its plan",
     "the state does not say by which arguments it was saved"},
    {"resume with the same shards, index, seed and mode", same_arguments},
    {"no stage of this plan has the saved state's record shuffle",
     "the state was saved with a shuffle, and this loader has none"},
    {"the saved state has no record shuffle",
     "the state was saved without a shuffle, and this loader has one"},
    {"it was saved by a plan without this shuffle", same_arguments},
    {"no stage of this plan has the saved state's record epochs_of",
     "the state was saved with epoch_samples, and this loader has none"},
    {"the saved state was saved without epochs_of",
     "the state was saved without epoch_samples, and this loader has them"},
    {"no stage of this plan has the saved state's record",
     "the state was saved by a loader of other arguments: it has a position of"},
    {"the saved state has no record",
     "the state was saved by a loader of other arguments: it has no position of"},
    {"it was saved by a plan with other lanes", same_arguments},
    {"resume with the stages that it was saved with, such as the shuffle", same_arguments},
    {"resume with the stages that it was saved with", same_arguments},
    {"the saved state has no lane", "the state is not of this rank: it has no lane"},
    {"resume a job of several ranks from the states of all ranks",
     "give load_state_dict() the list of the states of all ranks"},
    {"resuming with another number of lanes needs the states of all ranks",
     "give the list of the states of all ranks: other lanes, or another number of ranks, need it"},
    {"the states of the ranks are of different plans",
     "the states of the ranks are of loaders with different arguments"},
    {"a sample stage now drops a sample that it passed before",
     "a join now leaves out a sample that it gave before"},
    {"sample stages must be pure functions: resume with the stages that the state was saved with",
     "join what was joined when the state was saved"},
    {"resume from another checkpoint", "load another state"},
});

// Takes off the numbers of lanes and ranks from names of a state's records: "record lane3/shuffle"
// becomes "record shuffle", and "record epochs_of of rank 0 of 2" becomes "record epochs_of".
std::string without_places(std::string text) {
  constexpr std::string_view named = "record ";
  constexpr std::string_view lane = "lane";
  constexpr std::string_view of_rank = " of rank ";
  constexpr std::string_view digits = "0123456789";
  for (std::size_t at = text.find(named); at != text.npos; at = text.find(named, at)) {
    at += named.size();
    const std::size_t slash = text.find_first_not_of(digits, at + lane.size());
    const bool has_lane = text.compare(at, lane.size(), lane) == 0 && slash != text.npos &&
                          slash > at + lane.size() && text[slash] == '/';
    if (has_lane) text.erase(at, slash + 1 - at);
    const std::size_t end = std::min(text.find_first_of(" ;", at), text.size());
    if (text.compare(end, of_rank.size(), of_rank) != 0) continue;
    const std::size_t of = text.find_first_not_of(digits, end + of_rank.size());
    constexpr std::string_view between = " of ";
    if (of == text.npos || text.compare(of, between.size(), between) != 0) continue;
    text.erase(end,
               std::min(text.find_first_not_of(digits, of + between.size()), text.size()) - end);
  }
  return text;
}

}  // namespace

std::string words_of(const std::string& text) {
  constexpr std::string_view unit = "_MiB";
  std::vector<option_flag> all(arguments.begin(), arguments.end());
  all.insert(all.end(), states.begin(), states.end());
  augment_options changes;
  for (const change_share& each : shares_of(changes)) all.emplace_back(each.option, each.name());
  std::string out = in_program_words(without_places(text), all);
  for (std::size_t at = out.find(unit); at != out.npos; at = out.find(unit, at)) out.erase(at, 1);
  return out;
}

void bind_errors(nb::module_& to) {
  // The names of all kinds.
  to.def("kinds", [] {
    nb::list names;
    for (int k = 0; k <= static_cast<int>(errc::internal); ++k) {
      const std::string_view name = kind_name(static_cast<errc>(k));
      names.append(nb::str(name.data(), name.size()));
    }
    return names;
  });
  speak_in(words_of);
}

}  // namespace millrace::python
