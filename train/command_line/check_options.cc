#include "train/command_line/check_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "io/stores/stored_objects.h"
#include "train/checkpoints/checkpoint_files.h"
#include "train/command_line/recipe.h"
#include "train/models/known_models.h"

namespace millrace {
namespace {

void check_model(const train_options& o) {
  const known_model& trained = model_named(o.model, o.own_models);
  const int least_size = std::min(o.growing.from == 0 ? o.size : o.growing.from, o.size);
  std::string of_one;
  if (o.mode == train_epochs::exact) of_one = "--mode exact, whose last batches may be of one,";
  if (o.batch_size / o.accumulate == 1) {
    of_one = o.accumulate == 1
                 ? "--batch-size 1"
                 : fmt::format("--accumulate {} of --batch-size {}", o.accumulate, o.batch_size);
  }
  if (!of_one.empty() && least_size <= trained.side_of_one_value) {
    throw failure(error(errc::usage,
                        fmt::format("{} cannot be combined with --model {} and images of {} pixels "
                                    "or less: batch normalization needs two values",
                                    of_one, o.model, trained.side_of_one_value))
                      .hint(o.mode == train_epochs::exact ? "raise --size, or use --mode equal"
                                                          : "raise --batch-size or --size"));
  }
  if (least_size < trained.smallest_size || o.size % trained.size_step != 0) {
    throw failure(
        error(errc::usage,
              fmt::format("--model {} does not take images of {} pixels", o.model, least_size))
            .hint(trained.size_step > 1
                      ? fmt::format("use a --size that is a multiple of {}", trained.size_step)
                      : fmt::format("use {} pixels or more", trained.smallest_size)));
  }
  if (o.zero_last_norm && !trained.has_last_norm) {
    throw failure(
        error(errc::usage, fmt::format("--zero-init-last-norm cannot be combined with --model {}, "
                                       "which has no batch normalization at the end of its blocks",
                                       o.model)));
  }
  if (o.zero_last_norm && !o.init_weights.empty()) {
    throw failure(
        error(errc::usage, "--zero-init-last-norm cannot be combined with --init-weights"));
  }
  if (!trained.takes_any_size && o.growing.from != 0) {
    throw failure(error(errc::usage,
                        fmt::format("--grow-from cannot be combined with --model {}, which takes "
                                    "images of one size",
                                    o.model))
                      .hint("use a resnet, or leave it out"));
  }
}

void check_weights(const train_options& o) {
  if (std::filesystem::path(o.init_weights).filename() == optimizer_name) {
    throw failure(error(errc::usage, "--init-weights names the momenta of a checkpoint")
                      .at(o.init_weights)
                      .hint("the weights are in model.safetensors next to it"));
  }
  std::error_code unknown;
  if (std::filesystem::is_directory(o.init_weights, unknown)) {
    throw failure(error(errc::usage, "--init-weights names a folder, and not a file of weights")
                      .at(o.init_weights)
                      .hint("those of a checkpoint are in its model.safetensors"));
  }
}

void check_sizes(const train_options& o) {
  if (o.growing.from <= o.size) return;
  throw failure(
      error(errc::usage, fmt::format("--grow-from {} is above --size {}", o.growing.from, o.size))
          .hint(o.recipe.empty() ? "lower it, or raise --size"
                                 : "set both, in place of those of --recipe"));
}

void check_optimizer(const train_options& o) {
  if (o.optimizer.nesterov && o.optimizer.momentum == 0) {
    throw failure(error(errc::usage, "--nesterov needs a --momentum above 0"));
  }
  if (o.accumulate > o.batch_size) {
    throw failure(error(errc::usage, fmt::format("--accumulate {} is more parts than --batch-size "
                                                 "{} has images",
                                                 o.accumulate, o.batch_size)));
  }
  if (o.rate.least > o.rate.lr) {
    throw failure(
        error(errc::usage, fmt::format("--min-lr {} is above --lr {}", o.rate.least, o.rate.lr)));
  }
  if (o.rate.schedule == lr_schedule::one_cycle && o.rate.warmup_epochs > 0) {
    throw failure(error(errc::usage, "--warmup-epochs cannot be combined with --schedule one-cycle")
                      .hint("its warm-up is --pct-start"));
  }
}

// Batches that are made once need no data, and leave nothing to go on from.
void check_synthetic(const train_options& o) {
  const std::array others{std::pair{"--shards", !o.shards.empty()},
                          std::pair{"--index", !o.index.empty()},
                          std::pair{"--raw", !o.raw.empty()},
                          std::pair{"--val-shards", !o.val_shards.empty() || !o.val_index.empty()},
                          std::pair{"--checkpoint-dir", !o.checkpoint_dir.empty()},
                          std::pair{"--resume", !o.resume.empty()},
                          std::pair{"--record-batches", !o.record_batches.empty()},
                          std::pair{"--data-world", o.data_world > 0},
                          std::pair{"--mode resample", o.mode == train_epochs::resample},
                          std::pair{"--mode exact", o.mode == train_epochs::exact}};
  for (const auto& [option, is_given] : others) {
    if (!is_given) continue;
    throw failure(
        error(errc::usage, fmt::format("--synthetic cannot be combined with {}", option)));
  }
  if (o.max_steps > 0) return;
  throw failure(error(errc::usage, "--synthetic needs --max-steps: its epochs have no end"));
}

}  // namespace

void check_options(const train_options& o) {
  if (o.mode == train_epochs::resample && o.epoch_batches + o.epoch_samples == 0) {
    throw failure(error(errc::usage, "--mode resample has endless epochs")
                      .hint("set their length: --epoch-batches N or --epoch-samples N"));
  }
  if (o.mode == train_epochs::resample && o.growing.from != 0) {
    throw failure(error(errc::usage,
                        "--grow-from cannot be combined with --mode resample, whose passes over "
                        "the data never end"));
  }
  if (o.mode == train_epochs::exact && o.epoch_batches + o.epoch_samples > 0) {
    throw failure(error(errc::usage,
                        "--mode exact, whose epoch is one pass over the data, cannot be combined "
                        "with --epoch-batches or --epoch-samples")
                      .hint("use --mode equal"));
  }
  const bool has_data = !(o.shards.empty() && o.index.empty() && o.raw.empty());
  if (o.synthetic) {
    check_synthetic(o);
  } else if (!has_data) {
    throw failure(error(errc::usage, "no data: give --shards, --index or --raw"));
  }
  if (o.graph && o.mixing.mixup + o.mixing.cutmix > 0) {
    throw failure(error(errc::usage, "--graph cannot be combined with --mixup or --cutmix"));
  }
  if (o.graph && o.device == "cpu") {
    throw failure(error(errc::usage, "--graph cannot be combined with --device cpu"));
  }
  if (o.gpu_decode > 0 && o.mixing.mixup + o.mixing.cutmix > 0) {
    throw failure(error(errc::usage, "--gpu-decode cannot be combined with --mixup or --cutmix"));
  }
  if (o.gpu_decode > 0 && changes_pixels(o.changes)) {
    throw failure(
        error(errc::usage, "--gpu-decode cannot be combined with augmentations of pixels"));
  }
  if (!o.augment && (changes_pixels(o.changes) || o.growing.from != 0)) {
    throw failure(
        error(errc::usage, "--no-augment cannot be combined with augmentations or --grow-from"));
  }
  check_weights(o);
  check_sizes(o);
  check_model(o);
  if (!o.raw.empty() && !(o.shards.empty() && o.index.empty())) {
    throw failure(error(errc::usage, "--raw cannot be combined with --shards or --index"));
  }
  check_optimizer(o);
  if (o.data_rank >= 0 && o.local_ranks > 1) {
    throw failure(error(errc::usage, "--data-rank is one rank's, and --nproc starts several")
                      .hint("leave it out: with --data-world alone, neighbouring ranks share a "
                            "part"));
  }
  if (o.data_rank >= 0 && o.data_rank >= o.data_world) {
    throw failure(error(errc::usage, fmt::format("--data-rank {} is not below --data-world {}",
                                                 o.data_rank, o.data_world)));
  }
  if (!o.resume.empty() && o.overwrite && o.resume == "auto") {
    throw failure(error(errc::usage, "--resume auto cannot be combined with --overwrite")
                      .hint("resume the existing run, or start another one"));
  }
  if (!o.resume.empty() && o.resume == "auto" && o.checkpoint_dir.empty()) {
    throw failure(error(errc::usage, "--resume auto needs --checkpoint-dir"));
  }
  for (const std::string& place : {o.checkpoint_dir, o.resume})
    check_has_two_slashes(place).value();
  if (names_server(o.checkpoint_dir)) check_writable(o.checkpoint_dir).value();
}

void check_effects(const std::vector<std::string>& words, const recipe_text& recipe,
                   const train_options& o) {
  struct condition {
    const char* option;
    bool has_effect;
    const char* decided_by;  // the option that takes its effect, or gives it
    const char* what;
  };
  const lr_schedule schedule = o.rate.schedule;
  const optimizer_kind kind = o.optimizer.kind;
  const bool steps = schedule == lr_schedule::step;
  const bool cycles = schedule == lr_schedule::one_cycle;
  const bool falls = schedule == lr_schedule::cosine || schedule == lr_schedule::linear ||
                     schedule == lr_schedule::polynomial;
  const bool is_adamw = kind == optimizer_kind::adamw;
  const bool is_lars = kind == optimizer_kind::lars;
  const bool draws = o.changes.policy == augment_policy::randaugment;
  const std::array all{
      condition{"--step-epochs", steps, "--schedule", "needs --schedule step"},
      condition{"--step-factor", steps, "--schedule", "needs --schedule step"},
      condition{"--min-lr", falls, "--schedule", "needs --schedule cosine, linear or polynomial"},
      condition{"--power", schedule == lr_schedule::polynomial, "--schedule",
                "needs --schedule polynomial"},
      condition{"--pct-start", cycles, "--schedule", "needs --schedule one-cycle"},
      condition{"--div-factor", cycles, "--schedule", "needs --schedule one-cycle"},
      condition{"--final-div-factor", cycles, "--schedule", "needs --schedule one-cycle"},
      condition{"--momentum", !is_adamw, "--optimizer", "needs --optimizer sgd or lars"},
      condition{"--nesterov", !is_adamw, "--optimizer", "needs --optimizer sgd or lars"},
      condition{"--betas", is_adamw, "--optimizer", "needs --optimizer adamw"},
      condition{"--eps", is_adamw || is_lars, "--optimizer", "needs --optimizer adamw or lars"},
      condition{"--trust-coefficient", is_lars, "--optimizer", "needs --optimizer lars"},
      condition{"--randaugment-ops", draws, "--policy", "needs --policy randaugment"},
      condition{"--randaugment-magnitude", draws, "--policy", "needs --policy randaugment"},
      condition{"--min-crop", o.augment, "--no-augment", "cannot be combined with --no-augment"},
      condition{"--val-batch-size", !o.val_shards.empty() || !o.val_index.empty(), nullptr,
                "needs --val-shards or --val-index"}};
  for (const condition& c : all) {
    if (c.has_effect) continue;
    const error wrong(errc::usage, fmt::format("{} {}", c.option, c.what));
    if (is_given(words, c.option)) throw failure(wrong);
    if (c.decided_by == nullptr || is_given(words, c.decided_by)) continue;
    const bool is_augment = std::string_view(c.decided_by) == "--no-augment";
    if (is_augment && is_given(words, "--augment")) continue;  // --augment=false
    const std::string place = place_in_recipe(recipe, words, fmt::format("{}:", c.option));
    if (!place.empty()) throw failure(error(wrong).at(place).hint("correct the recipe"));
  }
}

}  // namespace millrace
