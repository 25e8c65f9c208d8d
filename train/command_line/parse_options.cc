#include "train/command_line/parse_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/host/program.h"
#include "millrace/version.h"
#include "pipeline/images/decoded_cache.h"
#include "train/command_line/check_options.h"
#include "train/command_line/flags.h"
#include "train/command_line/recipe.h"
#include "train/models/exported_model.h"
#include "train/models/known_models.h"

namespace millrace {
namespace {

void add_data(flag_set& f, train_options& o) {
  f.group("Data");
  f.value("--recipe", o.recipe, "FILE",
          "values of options, as a JSON object without the dashes; those given here go before it");
  f.list("--shards", o.shards, "SPEC",
         "training shards: paths, URLs, brace ranges, '::' lists, @FILE; repeated options add up");
  f.value("--raw", o.raw, "DIR", "class folders with images, instead of shards");
  f.value("--index", o.index, "FILE|URL",
          "index of the training shards (millrace index): gives their lengths and, without "
          "--shards, the list of shards");
  f.list("--val-shards", o.val_shards, "SPEC", "validation shards");
  f.value(
      "--val-index", o.val_index, "FILE|URL",
      "index of the validation shards; with offsets it splits them among more ranks than shards");
  f.value("--base", o.base, "DIR|URL",
          "prefix of relative names, or a pattern with %s or {} for them");
  f.flag("--allow-pipe", o.allow_pipe, "pipe: URLs may run commands (MILLRACE_ALLOW_PIPE=1)");
  f.value("--label", o.label, "FIELD", "field with the class: auto, an extension, or json:FIELD");
  f.number("--classes", o.classes, 1, 1'000'000, "N",
           "classes: labels are 0 to N-1; samples with others are bad");
}

// "fail", "skip", a number or a percentage. Throws `failure` (usage).
error_policy policy_of(const std::string& text) {
  if (text == "fail") return fail_on_error();
  if (text == "skip") return skip_errors();
  const bool is_share = text.ends_with('%');
  const std::string_view digits =
      std::string_view(text).substr(0, text.size() - (is_share ? 1 : 0));
  const char* end = digits.data() + digits.size();
  if (is_share) {
    double share = 0;
    const auto got = std::from_chars(digits.data(), end, share);
    if (got.ec == std::errc{} && got.ptr == end && share > 0 && share <= 100) {
      return skip_rate(share / 100);
    }
  } else {
    std::uint64_t most = 0;
    const auto got = std::from_chars(digits.data(), end, most);
    if (got.ec == std::errc{} && got.ptr == end) return skip_up_to(most);
  }
  throw failure(error(errc::usage, fmt::format("--on-error: '{}' is not a policy", text))
                    .hint("use fail, skip, the most samples to skip, or their share: 0.1%"));
}

void add_bad_samples(CLI::App& app, flag_set& f, train_options& o) {
  f.group("Bad samples");
  app.add_option_function<std::string>(
         "--on-error",
         [&o](const std::string& text) {
           const std::string report = o.bad_samples.report;
           o.bad_samples = policy_of(text);
           o.bad_samples.report = report;
         },
         "fail, skip, the most samples that each rank may skip, or their share of all: 0.1%. "
         "Without --index, what a cut or damaged shard lacks counts as one")
      ->type_name("POLICY")
      ->default_str("fail");
  f.value("--skipped", o.bad_samples.report, "FILE",
          "list every skipped sample in this file, as JSON lines");
  f.flag("--resync", o.resync, "continue after damage within a shard, which --on-error may skip");
  f.flag("--lenient", o.image.lenient,
         "keep images with damaged data, and count them; otherwise they are bad samples");
  f.flag("--fill-truncated", o.image.fill_truncated,
         "keep images whose end is missing, filled with gray, and count them");
}

void add_order(flag_set& f, train_options& o) {
  f.group("Order and epochs");
  f.number("--shuffle", o.shuffle, 0, "SAMPLES",
           "samples held for shuffling, over all ranks; 0: only the order of shards is shuffled");
  f.number("--lanes", o.lanes, 0, 65536, "N",
           "sequences into which the shards are divided; a multiple of the world size (0: the "
           "smallest that is at least 8)");
  f.number("--seed", o.seed, 0, "N", "seed of order, augmentation and initial weights");
  const std::map<std::string, train_epochs> modes{{"resample", train_epochs::resample},
                                                  {"equal", train_epochs::equal},
                                                  {"exact", train_epochs::exact}};
  f.choice(
      "--mode", o.mode, modes,
      "equal: as many batches on every rank, the remainder is dropped; exact: each sample "
      "once, the last batches are smaller; resample: shards drawn with replacement, needs an epoch "
      "length");
  constexpr double most_of_epoch = 1e12;  // times the images of a batch is still a number
  auto* batches = f.number("--epoch-batches", o.epoch_batches, 1, most_of_epoch, "BATCHES",
                           "length of an epoch on each rank, instead of one pass; the next epoch "
                           "continues where it stopped");
  f.number("--epoch-samples", o.epoch_samples, 1, most_of_epoch, "SAMPLES",
           "the same over all ranks")
      ->excludes(batches);
  f.number("--epochs", o.epochs, 1, "EPOCHS", "epochs to train");
  f.flag("--synthetic", o.synthetic,
         "train on batches that are made once, on the device, to measure the model alone");
  f.number("--max-steps", o.max_steps, 0, "STEPS",
           "maximum number of steps; 0: only --epochs limits them");
  f.number("--prefetch", o.prefetch, 1, 1024, "BATCHES",
           "batches to prepare ahead of the one in use");
}

void add_images(flag_set& f, train_options& o) {
  f.group("Images");
  f.number("--size", o.size, 8, 4096, "PIXELS", "side of the images");
  f.flag("--augment,!--no-augment", o.augment,
         "random crops and flips; off: resize and centre crop, as in validation");
  f.number("--min-crop", o.min_crop, 0.001, 1, "SHARE", "smallest area of a training crop");
  const std::map<std::string, resample_filter> filters{{"box", resample_filter::box},
                                                       {"bilinear", resample_filter::bilinear},
                                                       {"bicubic", resample_filter::bicubic},
                                                       {"lanczos", resample_filter::lanczos}};
  f.choice("--filter", o.image.filter, filters, "filter for resampling");
  f.flag("--fast-decode", o.image.fast,
         "decode large JPEGs at a smaller size, by a faster transform; not exact");
  f.number("--gpu-decode", o.gpu_decode, 0, 1, "SHARE",
           "share of the JPEGs that the GPU decodes, by nvJPEG; not exact");
  auto* epochs = f.number("--grow-epochs", o.growing.epochs, 1, "EPOCHS",
                          "passes over the data that growing takes");
  auto* from =
      f.number("--grow-from", o.growing.from, 0, 16384, "PIXELS",
               "image size of the first epoch, growing to --size; 0: --size from the start");
  from->needs(epochs);
  epochs->needs(from);
  auto* cache =
      f.value("--cache-decoded", o.cache_decoded, "BYTES",
              "memory for decoded images of earlier epochs, in addition to MILLRACE_MEMORY: 8G");
  f.value("--cache-decoded-dir", o.cache_folder, "DIR",
          "keep decoded images in this folder, not in memory")
      ->needs(cache);
  f.number("--cache-decoded-resize", o.cache_resize, 0, decoded_cache_options::most_resize,
           "PIXELS",
           "keep decoded images with a shorter side of at most this; 0: full size; not exact")
      ->needs(cache);
}

void add_augmentation(flag_set& f, train_options& o) {
  f.group("Augmentation");
  std::map<std::string, augment_policy> policies;
  for (std::size_t i = 0; i < augment_policy_names.size(); ++i) {
    policies.emplace(augment_policy_names[i], static_cast<augment_policy>(i));
  }
  augment_options& a = o.changes;
  f.choice("--policy", a.policy, policies, "policy that draws operations");
  f.number("--randaugment-ops", a.randaugment_ops, 0, augment_options::most_randaugment_ops, "N",
           "operations that randaugment applies to an image");
  f.number("--randaugment-magnitude", a.randaugment_magnitude, 0,
           augment_options::most_randaugment_magnitude, "N",
           "strength of randaugment's operations, 0 to 30");
  auto* jitter =
      f.numbers("--color-jitter",
                {&a.jitter.brightness, &a.jitter.contrast, &a.jitter.saturation, &a.jitter.hue},
                "B,C,S,H", "brightness, contrast, saturation, hue: 0.4,0.4,0.4,0.1");
  f.number("--jitter-part", a.jitter.probability, 0, 1, "SHARE", "share of the images to jitter")
      ->needs(jitter);
  for (const change_share& each : shares_of(a)) {
    f.number(each.flag, *each.share, 0, 1, "SHARE", each.meaning);
  }
  f.number("--mixup", o.mixing.mixup, 0, "ALPHA", "alpha of mixup, such as 0.2; 0: none");
  f.number("--cutmix", o.mixing.cutmix, 0, "ALPHA", "alpha of CutMix, such as 1; 0: none");
}

void add_model(flag_set& f, train_options& o) {
  f.group("Model and device");
  f.choice(
      "--model", o.model, model_names(o.own_models),
      "the model; trivial is one linear layer; a file (FILE.pt2) is a PyTorch module of yours, "
      "which export_model.py made",
      names_exported_model, ", nor a .pt2 file that export_model.py made");
  f.value("--init-weights", o.init_weights, "FILE", "state dict (safetensors) to start from");
  f.flag("--zero-init-last-norm", o.zero_last_norm,
         "begin with weights 0 in the last batch normalization of each block of a resnet");
  f.number("--label-smoothing", o.label_smoothing, 0, 1, "SHARE", "label smoothing of the loss");
  constexpr double below_one = 0.9999999;
  f.number("--ema-decay", o.ema_decay, 0, below_one, "N",
           "validate and save, as ema.safetensors, a moving average of the weights of which each "
           "step keeps this part, such as 0.9999; 0: none");
  f.choice("--device", o.device, {"auto", "cpu", "cuda"}, "auto: a GPU if there is one");
  f.flag("--amp,!--no-amp", o.amp, "bf16 autocast on a GPU");
  f.flag("--deterministic", o.deterministic,
         "only kernels that give the same bits each time on the same kind of GPU: slower");
  f.flag("--tf32", o.tf32, "TF32 in what is computed in float32 on a GPU: faster, less exact");
  f.flag("--cudnn-benchmark,!--no-cudnn-benchmark", o.cudnn_benchmark,
         "let cuDNN try its convolutions at the start, and take the fastest");
  f.flag("--graph", o.graph,
         "record a step as a CUDA graph, and replay it: for small steps, on one rank");
}

void add_optimizer(flag_set& f, train_options& all) {
  f.group("Optimizer");
  optimizer_options& o = all.optimizer;
  f.number("--batch-size", all.batch_size, 1, 65536, "IMAGES", "images of each rank and step");
  f.number("--val-batch-size", all.val_batch_size, 1, 65536, "IMAGES",
           "images of each rank and validation step");
  f.number("--accumulate", all.accumulate, 1, 65536, "N",
           "parts into which a batch is divided; their gradients add up to a step, in the memory "
           "that one part needs");
  const std::map<std::string, optimizer_kind> kinds{{"sgd", optimizer_kind::sgd},
                                                    {"adamw", optimizer_kind::adamw},
                                                    {"lars", optimizer_kind::lars}};
  f.choice("--optimizer", o.kind, kinds, "how weights follow from gradients");
  f.number("--momentum", o.momentum, 0, 1, "N", "momentum of SGD and LARS");
  f.flag("--nesterov", o.nesterov, "Nesterov momentum");
  constexpr double below_one = 0.9999999;
  f.numbers("--betas", {&o.beta1, &o.beta2}, 0, below_one, "B1,B2",
            "parts that AdamW keeps of the means of gradients and of their squares");
  f.number("--eps", o.eps, 0, 1, "N", "what AdamW and LARS add to divisors");
  f.number("--trust-coefficient", o.trust, 0, "N", "factor of LARS's ratio of norms");
  f.number("--weight-decay", o.weight_decay, 0, "N", "weight decay; of AdamW times the rate");
  const std::map<std::string, decayed> decays{{"none", decayed::all},
                                              {"norms", decayed::without_norms}};
  f.choice("--no-decay", o.decays, decays,
           "norms: no weight decay of parameters of one dimension: norms and biases");
  f.number("--clip-norm", o.clip_norm, 0, "N", "clip the gradient to this norm; 0: not clipped");
}

void add_rate(flag_set& f, schedule_options& o) {
  f.group("Learning rate");
  f.number("--lr", o.lr, 0, "RATE", "learning rate, for the whole batch of all ranks");
  f.choice("--schedule", o.schedule, schedule_names(), "schedule of the learning rate");
  f.number("--warmup-epochs", o.warmup_epochs, 0, "EPOCHS", "epochs of linear warm-up");
  f.numbers("--step-epochs", o.step_epochs, "epochs at which schedule step lowers the rate");
  f.number("--step-factor", o.step_factor, 0, 1, "N",
           "factor by which schedule step multiplies the rate");
  f.number("--min-lr", o.least, 0, "RATE", "where schedules cosine, linear and polynomial end");
  f.number("--power", o.power, 0, 100, "N", "power of schedule polynomial");
  f.number("--pct-start", o.rising_part, 0, 1, "SHARE",
           "part of one-cycle in which the rate rises");
  f.number("--div-factor", o.first_divisor, 1, "N", "one-cycle begins at --lr divided by this");
  f.number("--final-div-factor", o.last_divisor, 1, "N", "and ends at that divided by this");
}

void add_run(flag_set& f, train_options& o) {
  f.group("Checkpoints");
  auto* folder =
      f.value("--checkpoint-dir", o.checkpoint_dir, "DIR|URL",
              "folder for checkpoints, or a prefix in a store (s3://, gs://, az://), written by "
              "rank 0 at the end of each epoch and of the run");
  f.number("--checkpoint-every", o.checkpoint_every, 0, "STEPS",
           "steps between checkpoints; 0: only at the end of each epoch")
      ->needs(folder);
  f.number("--keep", o.keep, 1, "N", "newest checkpoints of this run to keep")->needs(folder);
  f.value("--resume", o.resume, "auto|DIR|URL",
          "auto: the newest complete checkpoint, if there is one; or a checkpoint's folder or URL");
  f.flag("--overwrite", o.overwrite,
         "start even if --checkpoint-dir, --metrics or --skipped belong to another run: set its "
         "checkpoints aside, replace its files");
  f.group("Report");
  auto* metrics = f.value("--metrics", o.metrics, "FILE",
                          "write a JSON line for every step (rank R: FILE.rankR)");
  f.flag("--metrics-keys", o.metrics_keys, "write the keys of each step's samples into --metrics")
      ->needs(metrics);
  f.value("--profile", o.profile, "FILE",
          "write a trace of steps 21 to 30 of rank 0, with a GPU's kernels, for ui.perfetto.dev");
  f.number("--log-every", o.log_every_s, 0, "SECONDS", "seconds between log lines");
  f.flag("--json", o.json, "print one JSON object as the last line");
  f.value("--record-batches", o.record_batches, "DIR",
          "write every batch to this empty folder (safetensors), for comparisons");
  f.group("Job");
  auto* ranks = f.number("--nproc", o.local_ranks, 0, 256, "RANKS",
                         "ranks to start on this host; 0: this process is a rank itself");
  f.number("--restarts", o.restarts, 0, 1'000'000, "N",
           "how often to start the ranks again from the newest checkpoint after one has failed")
      ->needs(ranks)
      ->needs(folder);
  auto* parts = f.number("--data-world", o.data_world, 0, 65536, "PARTS",
                         "parts of the data, for ranks that share them, as those of a model that "
                         "is divided do: as many ranks read each; 0: each rank has its own");
  f.number("--data-rank", o.data_rank, 0, 65535, "PART",
           "the part that this rank reads; otherwise neighbouring ranks share one")
      ->default_str("")
      ->needs(parts);
  f.number("--timeout", o.timeout_s, 1, 86400, "SECONDS",
           "seconds after which a silent peer counts as lost, or joining fails");
}

// As CLI11 takes words.
std::vector<std::string> reversed(std::vector<std::string> words) {
  std::ranges::reverse(words);
  return words;
}

constexpr const char* footer = R"(
Example: two ranks on this host, started again up to three times, and resumed where they stopped:
  millrace-train --nproc 2 --restarts 3 \
    --shards 'data/train-{000000..000099}.tar' --val-shards 'data/val-{000000..000009}.tar' \
    --model resnet50 --classes 1000 --batch-size 128 --epochs 90 --lr 0.1 \
    --checkpoint-dir ck --resume auto --metrics run.jsonl

If an option is given twice, the last one counts; --shards and --val-shards add up. An option that
is not given has its value in --recipe, else its default. SIGINT and
SIGTERM end after the current step, with a checkpoint; SIGUSR1 saves one and continues, SIGUSR2 and
SIGHUP save one and end (exit codes 130, 143, 140, 129). MILLRACE_ variables tune everything else:
millrace env.)";

}  // namespace

parsed_options parse_train_options(int argc, char** argv, std::vector<known_model> own) {
  parsed_options parsed;
  parsed.options.own_models = std::move(own);
  if (!parsed.options.own_models.empty()) {
    parsed.options.model = parsed.options.own_models.front().name;
  }
  CLI::App app("Trains an image classifier from WebDataset shards, alone or with DDP.",
               "millrace-train");
  app.set_version_flag("--version", "millrace-train " MILLRACE_VERSION);
  app.footer(footer);
  flag_set f(app);
  add_data(f, parsed.options);
  add_bad_samples(app, f, parsed.options);
  add_order(f, parsed.options);
  add_images(f, parsed.options);
  add_augmentation(f, parsed.options);
  add_model(f, parsed.options);
  add_optimizer(f, parsed.options);
  add_rate(f, parsed.options.rate);
  add_run(f, parsed.options);
  check_values_given(std::span(argv, static_cast<std::size_t>(argc)).subspan(argc > 0 ? 1 : 0));
  const std::vector<std::string> given(argv + std::min(1, argc), argv + argc);
  const recipe_text recipe = read_recipe(given);
  try {
    app.parse(reversed(with_recipe(recipe, given, app)));
  } catch (const CLI::Success& asked) {
    parsed.exit_code = app.exit(asked);
    return parsed;
  } catch (const CLI::ExtrasError&) {
    throw failure(flag_set::unknown(app));
  } catch (const CLI::ParseError& e) {
    std::string wrong = e.what();
    std::ranges::replace(wrong, '\n', ' ');
    throw failure(error(errc::usage, wrong)
                      .at(place_in_recipe(recipe, given, wrong))
                      .hint(!recipe.file.empty() ? "see `millrace-train --help`, and the --recipe"
                                                 : "see `millrace-train --help`"));
  }
  if (names_exported_model(parsed.options.model)) {
    parsed.options.own_models.push_back(exported_in(parsed.options.model));
  }
  check_options(parsed.options);
  check_effects(given, recipe, parsed.options);
  parsed.options.asks_for_amp = parsed.options.amp && is_given(given, "--amp");
  parsed.options.said = flag_set::said_by(app);
  parsed.options.defaults = flag_set::defaults_of(app);
  return parsed;
}

}  // namespace millrace
