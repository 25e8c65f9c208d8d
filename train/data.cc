#include "train/data.h"

#include <limits>

#include "pipeline/batch.h"
#include "pipeline/counting.h"
#include "pipeline/group.h"
#include "pipeline/images/decode.h"
#include "pipeline/images/mixing.h"
#include "pipeline/on_error.h"
#include "pipeline/prefetch.h"
#include "pipeline/sample_source.h"
#include "pipeline/shards.h"
#include "pipeline/shuffle.h"
#include "pipeline/stages.h"
#include "pipeline/untar.h"

namespace millrace {

plan<host_batch> training_plan(const train_options& o, const job_place& place) {
  const std::int64_t length = epoch_length(o, place.world_size);
  const bool passes = length == 0;  // an epoch is one pass over the data
  const bool resample = o.mode == train_epochs::resample;
  constexpr std::int64_t endless = std::numeric_limits<std::int32_t>::max();
  const shard_list_options list{.seed = o.seed,
                                .rank = place.rank,
                                .world_size = place.world_size,
                                .lanes = o.lanes,
                                .mode = resample              ? epoch_mode::resample
                                        : o.lengths && passes ? epoch_mode::equal
                                                              : epoch_mode::exact,
                                .epochs = passes ? o.epochs : endless,
                                .index = o.lengths};
  const bool raw = !o.raw.empty();
  auto samples = raw ? raw_samples(class_folders(o.raw), list)
                     : shards(o.shards, list) | untar({.resync = o.resync}) | group_by_key();
  if (o.shuffle > 0 && !raw) samples = samples | shuffle({.samples = o.shuffle, .seed = o.seed});
  decode_options decode{.size = o.size,
                        .train = o.augment,
                        .seed = o.seed,
                        .crop = {.least_area = o.min_crop},
                        .augment = o.changes,
                        .growing = o.growing,
                        .label = o.label,
                        .image = o.image,
                        .encoded_share = o.gpu_decode};
  if (!o.cache_decoded.empty()) {
    const auto bytes = parse_bytes(o.cache_decoded);
    if (!bytes) throw failure(bytes.error());
    decode.cache =
        cache_decoded({.bytes = *bytes, .folder = o.cache_folder, .resize = o.cache_resize});
  }
  auto images = samples | decode_jpeg(decode);
  // In front of on_error, whose ledger goes by epochs; errors pass, and are not counted.
  if (!passes) images = images | epochs_of(length * o.batch_size);
  auto batches =
      images | on_error(o.bad_samples) | batch({.size = o.batch_size, .drop_last = true});
  if (o.mixing.mixup + o.mixing.cutmix > 0) {
    mixing_options mixing = o.mixing;
    mixing.seed = o.seed;
    batches = batches | map(mix_images(mixing), {.threads = 1});
  }
  return batches | prefetch(o.prefetch);
}

plan<host_batch> validation_plan(const train_options& o, const job_place& place) {
  const shard_list_options list{
      .rank = place.rank, .world_size = place.world_size, .lanes = o.lanes, .shuffle = false};
  return shards(o.val_shards, list) | untar() | group_by_key() |
         decode_jpeg({.size = o.size,
                      .train = false,
                      .label = o.label,
                      .image = o.image,
                      .encoded_share = o.gpu_decode}) |
         on_error(o.bad_samples) | batch({.size = o.val_batch_size}) | prefetch(o.prefetch);
}

}  // namespace millrace
