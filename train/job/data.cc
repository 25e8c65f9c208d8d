#include "train/job/data.h"

#include <algorithm>
#include <limits>

#include "engine/base/divided.h"
#include "engine/base/units.h"
#include "engine/host/host.h"
#include "pipeline/formats/class_folders.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/untar.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/mixing.h"
#include "pipeline/shards/shards.h"
#include "pipeline/stages/batch.h"
#include "pipeline/stages/counting.h"
#include "pipeline/stages/decode.h"
#include "pipeline/stages/map.h"
#include "pipeline/stages/on_error.h"
#include "pipeline/stages/prefetch.h"
#include "pipeline/stages/shuffle.h"
#include "train/device/to_device.h"

namespace millrace {

namespace {

shard_list_options list_of(const train_options& o, const run_inputs& found) {
  const job_place& place = found.parts.place();
  const bool passes = epoch_length(o, place.world_size) == 0;  // an epoch is one pass over the data
  const bool resample = o.mode == train_epochs::resample;
  const bool is_exact = o.mode == train_epochs::exact;
  constexpr std::int64_t endless = std::numeric_limits<std::int32_t>::max();
  return {.seed = o.seed,
          .rank = place.rank,
          .world_size = place.world_size,
          .lanes = o.lanes,
          .mode = resample                               ? epoch_mode::resample
                  : found.lengths && passes && !is_exact ? epoch_mode::equal
                                                         : epoch_mode::exact,
          .epochs = passes ? o.epochs : endless,
          .index = found.lengths};
}

error_policy policy_of(const train_options& o, std::string_view plan) {
  error_policy policy = o.bad_samples;
  policy.report_of = plan;
  return policy;
}

// Batches that the program holds at once: the one that it waits with for the next, the one that it
// hands over, and on a GPU those that are being copied.
int batches_held(const train_options& o) {
  return 2 + (o.device == "cuda" ? to_device::slots : 0);
}

lane_plan<sample> raw_plan(const train_options& o, const run_inputs& found,
                           const shard_list_options& list) {
  const class_folders tree(o.raw);
  if (tree.names_fingerprint() == found.raw_names) return raw_samples(tree, list);
  throw failure(error(errc::changed, "files were added or removed while the run started")
                    .at(o.raw)
                    .hint("start again once the folder no longer changes"));
}

// The hint of `why`, followed by "; " for another one; empty if it has none.
std::string after_hint(const error& why) {
  return why.what_to_do().empty() ? "" : why.what_to_do() + "; ";
}

lane_plan<shard_ref> validation_shards(const train_options& o, const run_inputs& found,
                                       const shard_list_options& list) {
  try {
    return shards(o.val_shards, list);
  } catch (const failure& f) {
    error why = of_validation(f.why());
    if (!found.val_lengths) why.hint(after_hint(why) + "give it as --val-index");
    throw failure(why);
  }
}

}  // namespace

std::uint64_t left_out_of_epoch(const train_options& o, const run_inputs& found, int lanes) {
  shard_list_options list = list_of(o, found);
  if (lanes > 0) list.lanes = lanes;
  return static_cast<std::uint64_t>(left_out(list));
}

std::int64_t known_samples(const train_options& o, const run_inputs& found) {
  return found.lengths ? found.lengths->samples() - left_out(list_of(o, found)) : found.raw_files;
}

std::vector<std::int64_t> samples_of_ranks(const train_options& o, const run_inputs& found,
                                           const std::vector<std::int64_t>& of_shards) {
  const shard_list_options list = list_of(o, found);
  std::vector<std::int64_t> of_ranks(static_cast<std::size_t>(found.parts.place().world_size), 0);
  const epoch_order order(o.shards, list, 0);
  for (std::int64_t lane = 0; lane < list.lane_count(); ++lane) {
    auto& of_rank = of_ranks[static_cast<std::size_t>(list.rank_of(lane))];
    // Files go to the lanes in turn.
    if (lane < found.raw_files)
      of_rank += divided_up(found.raw_files - lane, std::int64_t{list.lane_count()});
    for (const shard_ref& part : order.lane(lane)) {
      of_rank += part.samples < 0 ? of_shards[static_cast<std::size_t>(part.shard)] : part.samples;
    }
  }
  return of_ranks;
}

std::int64_t batches_of_ranks(const train_options& o, const std::vector<std::int64_t>& samples) {
  if (o.mode != train_epochs::exact) return std::ranges::min(samples) / o.batch_size;
  return divided_up(std::ranges::max(samples), std::int64_t{o.batch_size});
}

std::int64_t known_epoch_batches(const train_options& o, const run_inputs& found) {
  const std::int64_t given = epoch_length(o, found.parts.place().world_size);
  if (given > 0) return given;
  if (o.mode == train_epochs::resample) return 0;
  const std::int64_t samples = known_samples(o, found);
  if (samples == 0) return found.counted_batches;
  if (o.mode == train_epochs::equal) return samples / found.parts.place().world_size / o.batch_size;
  std::vector<std::int64_t> of_shards;
  if (found.lengths) {
    for (const auto& s : found.lengths->shards) of_shards.push_back(s.samples);
  }
  return batches_of_ranks(o, samples_of_ranks(o, found, of_shards));
}

plan<host_batch> training_plan(const train_options& o, const run_inputs& found) {
  const std::int64_t length = epoch_length(o, found.parts.place().world_size);
  const bool passes = length == 0;
  const shard_list_options list = list_of(o, found);
  const bool raw = !o.raw.empty();
  auto samples = raw ? raw_plan(o, found, list)
                     : shards(o.shards, list) | untar({.resync = o.resync}) | group_by_key();
  if (o.shuffle > 0 && !raw) samples = samples | shuffle({.samples = o.shuffle, .seed = o.seed});
  decode_options decode{.size = o.size,
                        .train = o.augment,
                        .seed = o.seed,
                        .crop = {.least_area = o.min_crop},
                        .augment = o.changes,
                        .growing = o.growing,
                        .label = o.label,
                        .classes = o.classes,
                        .image = o.image,
                        .encoded_share = o.gpu_decode};
  if (!o.cache_decoded.empty()) {
    const auto bytes = parse_bytes(o.cache_decoded);
    if (!bytes) throw failure(bytes.error());
    decode.cache =
        cache_decoded({.bytes = *bytes, .folder = o.cache_folder, .resize = o.cache_resize});
  }
  auto images = samples | decode_jpeg(decode);
  // Upstream of on_error, whose ledger counts by epoch; errors pass through uncounted.
  if (!passes) images = images | epochs_of(length * o.batch_size);
  auto batches = images | on_error(policy_of(o, "training")) |
                 batch({.size = o.batch_size,
                        .drop_last = o.mode != train_epochs::exact,
                        .held = batches_held(o)});
  if (o.mixing.mixup + o.mixing.cutmix > 0) {
    mixing_options mixing = o.mixing;
    mixing.seed = o.seed;
    batches = batches | map(mix_images(mixing), {.threads = 1});
  }
  return batches | prefetch(o.prefetch);
}

std::size_t state_bytes(const train_options& o, const engine_options& engine) {
  // state::from_json() gives the parsed text a quarter, of which a sample between two of other
  // shards, the list of its place, takes up to 1320 bytes.
  constexpr std::size_t bytes_of_held = std::size_t{6} << 10;
  constexpr std::size_t decoding = 4096;  // samples, at most
  // Those that are ready, one that is filled, and those in hand.
  const auto batches = static_cast<std::size_t>(o.prefetch) + 3;
  const std::size_t held = o.shuffle + static_cast<std::size_t>(o.batch_size) * batches + decoding;
  const std::size_t budget =
      engine.memory_bytes == 0 ? default_memory_bytes() : engine.memory_bytes;
  std::size_t most = 0;
  const bool overflows = __builtin_mul_overflow(held, bytes_of_held, &most) ||
                         __builtin_add_overflow(most, budget, &most);
  return overflows ? std::numeric_limits<std::size_t>::max() : most;
}

error with_policy(const error& why, const train_options& o) {
  if (!why.is_skippable() || o.bad_samples.most_skipped > 0) return why;
  return error(why).hint(after_hint(why) +
                         "--on-error skip, a number or a share skips such samples");
}

error of_validation(const error& why) {
  error of(why.kind(), "validation: " + why.what());
  of.at(why.where()).key(why.sample_key()).hint(why.what_to_do());
  if (why.byte_offset()) of.offset(*why.byte_offset());
  return of;
}

plan<host_batch> validation_plan(const train_options& o, const run_inputs& found) {
  const job_place& place = found.parts.place();
  const shard_list_options list{.rank = place.rank,
                                .world_size = place.world_size,
                                .lanes = o.lanes,
                                .shuffle = false,
                                .index = found.val_lengths};
  return validation_shards(o, found, list) | untar() | group_by_key() |
         decode_jpeg({.size = o.size,
                      .train = false,
                      .label = o.label,
                      .classes = o.classes,
                      .image = o.image,
                      .encoded_share = o.gpu_decode}) |
         on_error(policy_of(o, "validation")) |
         batch({.size = o.val_batch_size, .held = batches_held(o)}) | prefetch(o.prefetch);
}

}  // namespace millrace
