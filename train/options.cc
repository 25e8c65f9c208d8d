#include "train/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace millrace {
namespace {

// An option that takes one of these names.
template <class T>
void add_choice(CLI::App& app, const char* option, T& to, const std::map<std::string, T>& names,
                const char* help) {
  std::vector<std::string> known;
  for (const auto& [name, value] : names) known.push_back(name);
  app.add_option_function<std::string>(
         option, [&to, names](const std::string& name) { to = names.at(name); }, help)
      ->check(CLI::IsMember(known));
}

void add_data(CLI::App& app, train_options& o) {
  app.add_option("--shards", o.shards,
                 "training shards: paths, URLs, brace ranges, '::' lists, @FILE");
  app.add_option("--raw", o.raw, "a folder of class folders with images, instead of shards");
  app.add_option(
      "--index", o.index,
      "index of the training shards (millrace index): their lengths, and the list itself "
      "without --shards");
  app.add_flag("--resync", o.resync, "go on behind damage within a shard, with --on-error skip");
  app.add_option("--val-shards", o.val_shards, "validation shards");
  app.add_option("--base", o.base,
                 "what relative names stand behind, or within, in the place of %s or {}");
  app.add_flag("--allow-pipe", o.allow_pipe, "pipe: URLs may run commands (MILLRACE_ALLOW_PIPE=1)");
}

void add_samples(CLI::App& app, train_options& o) {
  app.add_option("--label", o.label, "field with the class: auto, an extension, or json:FIELD")
      ->capture_default_str();
  app.add_option("--batch-size", o.batch_size, "images per rank and step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--val-batch-size", o.val_batch_size, "images per rank and validation step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--size", o.size, "image size in pixels")
      ->check(CLI::Range(8, 4096))
      ->capture_default_str();
  app.add_flag("--augment,!--no-augment", o.augment,
               "random crops and flips (on); off: resize and centre crop, as in validation");
  app.add_option("--min-crop", o.min_crop, "smallest area of a training crop, of the image's")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  app.add_option("--shuffle", o.shuffle, "samples held for shuffling, over all ranks; 0: none")
      ->capture_default_str();
  app.add_option("--lanes", o.lanes,
                 "sequences that the shards are dealt to; a multiple of the world size "
                 "(0: the smallest one that is at least 8)")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "seed of order, augmentation and initial weights")
      ->capture_default_str();
  const std::map<std::string, train_epochs> modes{{"resample", train_epochs::resample},
                                                  {"equal", train_epochs::equal}};
  add_choice(app, "--mode", o.mode, modes,
             "how shards are drawn: equal (each sample once a pass), or resample (with "
             "replacement; needs the length of an epoch)");
  auto* batches = app.add_option("--epoch-batches", o.epoch_batches,
                                 "length of an epoch in batches of each rank, instead of one pass: "
                                 "the next one goes on where it stopped")
                      ->check(CLI::PositiveNumber);
  app.add_option("--epoch-samples", o.epoch_samples, "the same in samples, over all ranks")
      ->check(CLI::PositiveNumber)
      ->excludes(batches);
  app.add_option("--epochs", o.epochs, "epochs to train")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-steps", o.max_steps, "stop after so many steps; 0: by epochs alone")
      ->check(CLI::NonNegativeNumber);
  app.add_option_function<std::string>(
      "--on-error",
      [&o](const std::string& text) {
        const std::string report = o.bad_samples.report;
        if (text == "fail") {
          o.bad_samples = fail_on_error();
        } else if (text == "skip") {
          o.bad_samples = skip_errors();
        } else if (text.ends_with('%')) {
          o.bad_samples = skip_rate(std::stod(text) / 100);
        } else {
          o.bad_samples = skip_up_to(std::stoull(text));
        }
        o.bad_samples.report = report;
      },
      "bad samples: fail, skip, the number to skip at most, or the part of all: 0.1%");
  app.add_option_function<std::string>(
      "--skipped", [&o](const std::string& file) { o.bad_samples.report = file; },
      "a file that lists every skipped sample, a line of JSON each");
  app.add_option("--prefetch", o.prefetch, "batches ready beyond the one in use")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void add_images(CLI::App& app, train_options& o) {
  const std::map<std::string, augment_policy> policies{
      {"none", augment_policy::none},
      {"autoaugment", augment_policy::autoaugment},
      {"randaugment", augment_policy::randaugment},
      {"trivialaugment", augment_policy::trivialaugment}};
  const std::map<std::string, resample_filter> filters{{"box", resample_filter::box},
                                                       {"bilinear", resample_filter::bilinear},
                                                       {"bicubic", resample_filter::bicubic},
                                                       {"lanczos", resample_filter::lanczos}};
  augment_options& a = o.changes;
  const auto part = [&app](const char* name, double& to, const char* help) {
    app.add_option(name, to, help)->check(CLI::Range(0.0, 1.0));
  };
  add_choice(app, "--policy", a.policy, policies, "what draws operations (none)");
  app.add_option("--randaugment-ops", a.randaugment_ops, "operations that randaugment does")
      ->check(CLI::Range(0, 16))
      ->capture_default_str();
  app.add_option("--randaugment-magnitude", a.randaugment_magnitude, "how strongly, of 30")
      ->check(CLI::Range(0, 30))
      ->capture_default_str();
  app.add_option_function<std::vector<double>>(
         "--color-jitter",
         [&a](const std::vector<double>& each) {
           a.jitter.brightness = each[0];
           a.jitter.contrast = each[1];
           a.jitter.saturation = each[2];
           a.jitter.hue = each[3];
         },
         "brightness,contrast,saturation,hue: 0.4,0.4,0.4,0.1")
      ->delimiter(',')
      ->expected(4);
  part("--jitter-part", a.jitter.probability, "part of the images that is jittered (1)");
  part("--gray", a.gray, "part of the images that becomes gray (0)");
  part("--solarize", a.solarize, "part of the images that is solarised (0)");
  part("--blur", a.blur.probability, "part of the images that is blurred (0)");
  part("--erase", a.erasing.probability, "part of the images of which a box is erased (0)");
  app.add_option("--mixup", o.mixing.mixup, "mixup's alpha: 0.2; 0: none")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--cutmix", o.mixing.cutmix, "CutMix's alpha: 1; 0: none")
      ->check(CLI::NonNegativeNumber);
  auto* epochs = app.add_option("--grow-epochs", o.growing.epochs,
                                "epochs (passes over the data) that growing takes")
                     ->check(CLI::PositiveNumber);
  app.add_option("--grow-from", o.growing.from, "image size of the first epoch, growing to --size")
      ->needs(epochs)
      ->check(CLI::Range(1, 16384));
  app.add_option("--gpu-decode", o.gpu_decode,
                 "part of the JPEGs that the GPU decodes, by nvJPEG; not exact (0)")
      ->check(CLI::Range(0.0, 1.0));
  auto* cache = app.add_option("--cache-decoded", o.cache_decoded,
                               "bytes for decoded images of earlier epochs, beside the budget: 8G");
  app.add_option("--cache-decoded-dir", o.cache_folder, "keep them on disk, in this folder")
      ->needs(cache);
  app.add_option("--cache-decoded-resize", o.cache_resize,
                 "keep them with this shorter side at most; not exact")
      ->needs(cache)
      ->check(CLI::PositiveNumber);
  add_choice(app, "--filter", o.image.filter, filters, "of resampling (bilinear)");
  app.add_flag("--fast-decode", o.image.fast,
               "decode large JPEGs at a smaller size, by a faster transform; not exact");
  app.add_flag("--lenient", o.image.lenient,
               "keep images whose data are damaged, and count them; else they are bad samples");
  app.add_flag("--fill-truncated", o.image.fill_truncated,
               "keep images whose end is missing, with gray there, and count them");
}

void add_model(CLI::App& app, train_options& o) {
  app.add_option("--model", o.model, "resnet18, resnet34, resnet50, or trivial (one linear layer)")
      ->check(CLI::IsMember({"resnet18", "resnet34", "resnet50", "trivial"}))
      ->capture_default_str();
  app.add_option("--classes", o.classes, "classes")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--init-weights", o.init_weights, "state dict (safetensors) to start from");
  app.add_option("--label-smoothing", o.label_smoothing, "label smoothing")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--device", o.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--amp,!--no-amp", o.amp, "bf16 autocast on a GPU (on)");
}

void add_optimizer(CLI::App& app, optimizer_options& o) {
  app.add_option("--lr", o.lr, "learning rate, for the whole batch of all ranks")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--momentum", o.momentum, "momentum")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--weight-decay", o.weight_decay, "weight decay")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--nesterov", o.nesterov, "Nesterov momentum");
  app.add_option("--clip-norm", o.clip_norm, "largest norm of the gradient; 0: not clipped")
      ->check(CLI::NonNegativeNumber);
  const std::map<std::string, lr_schedule> schedules{{"constant", lr_schedule::constant},
                                                     {"step", lr_schedule::step},
                                                     {"cosine", lr_schedule::cosine}};
  add_choice(app, "--schedule", o.schedule, schedules, "of the learning rate (step)");
  app.add_option("--step-epochs", o.step_epochs, "epochs at which step lowers the rate")
      ->delimiter(',');
  app.add_option("--step-factor", o.step_factor, "what step multiplies the rate by")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--warmup-epochs", o.warmup_epochs, "epochs of linear warm-up")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void add_run(CLI::App& app, train_options& o) {
  app.add_option("--checkpoint-dir", o.checkpoint_dir, "folder for checkpoints");
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "steps between checkpoints; 0: at the ends of epochs alone")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--resume", o.resume,
                 "'auto' (the newest checkpoint, if there is one) or a checkpoint's folder");
  app.add_option("--metrics", o.metrics, "file for JSON lines, one a step (rank R: FILE.rankR)");
  app.add_option("--log-every", o.log_every_s, "seconds between log lines")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--timeout", o.timeout_s, "seconds after which a silent peer counts as lost")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_option("--record-batches", o.record_batches,
                 "folder to write every batch to (safetensors), for comparisons");
}

void check(const train_options& o) {
  if (o.mode == train_epochs::resample && o.epoch_batches + o.epoch_samples == 0) {
    throw failure(error(errc::usage, "--mode resample has endless epochs")
                      .hint("say how long one is: --epoch-batches N or --epoch-samples N"));
  }
  if (o.shards.empty() && o.index.empty() && o.raw.empty()) {
    throw failure(error(errc::usage, "none of --shards, --index and --raw"));
  }
  if (o.gpu_decode > 0 && o.mixing.mixup + o.mixing.cutmix > 0) {
    throw failure(error(errc::usage, "--gpu-decode besides --mixup or --cutmix"));
  }
  if (o.gpu_decode > 0 && changes_pixels(o.changes)) {
    throw failure(error(errc::usage, "--gpu-decode besides augmentations of pixels"));
  }
  if (!o.augment && (changes_pixels(o.changes) || o.growing.from != 0)) {
    throw failure(error(errc::usage, "--no-augment besides augmentations or --grow-from"));
  }
  if (!o.raw.empty() && !(o.shards.empty() && o.index.empty())) {
    throw failure(error(errc::usage, "--raw besides --shards or --index"));
  }
  if (!o.resume.empty() && o.resume == "auto" && o.checkpoint_dir.empty()) {
    throw failure(error(errc::usage, "--resume auto without --checkpoint-dir"));
  }
}

}  // namespace

std::int64_t epoch_length(const train_options& o, int world_size) {
  if (o.epoch_samples == 0) return o.epoch_batches;
  const std::int64_t of_all = static_cast<std::int64_t>(world_size) * o.batch_size;
  if (o.epoch_samples >= of_all) return o.epoch_samples / of_all;
  throw failure(
      error(errc::usage, fmt::format("--epoch-samples {} are less than one batch of {} on "
                                     "each of {} ranks",
                                     o.epoch_samples, o.batch_size, world_size))
          .hint(fmt::format("take {} at least", of_all)));
}

parsed_options parse_train_options(int argc, char** argv) {
  parsed_options parsed;
  CLI::App app("Trains a ResNet from WebDataset shards, alone or with DDP.", "millrace-train");
  app.set_version_flag("--version", "millrace-train " MILLRACE_VERSION);
  add_data(app, parsed.options);
  add_samples(app, parsed.options);
  add_images(app, parsed.options);
  add_model(app, parsed.options);
  add_optimizer(app, parsed.options.optimizer);
  add_run(app, parsed.options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    parsed.exit_code = app.exit(asked);
    return parsed;
  } catch (const CLI::ParseError& wrong) {
    std::string what = wrong.what();
    for (char& c : what) c = c == '\n' ? ' ' : c;
    throw failure(error(errc::usage, what).hint("see millrace-train --help"));
  } catch (const std::logic_error&) {  // std::stoull of --on-error
    throw failure(error(errc::usage, "--on-error takes fail, skip, a number or a percentage"));
  }
  check(parsed.options);
  return parsed;
}

}  // namespace millrace
